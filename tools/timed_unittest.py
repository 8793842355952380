#!/usr/bin/env python3
"""Runs tests of a module of unittest, and says how many of the processors' seconds each took, with what it started.

usage: timed_unittest.py MODULE [CLASS.METHOD…]     in the module's folder; it ends with the first that fails
       timed_unittest.py --list MODULE              the names of its tests
"""
import os
import sys
import unittest


def used():
    return sum(os.times()[:4])


class Timed(unittest.TextTestResult):
    def startTest(self, test):
        super().startTest(test)
        self.began = used()

    def stopTest(self, test):
        print(f"{used() - self.began:.3f} s: {test.id().partition('.')[2]}", flush=True)
        super().stopTest(test)


def names_of(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from names_of(test)
        else:
            yield test.id().partition(".")[2]


def main(words):
    sys.path.insert(0, os.getcwd())
    if words[0] == "--list":
        print("\n".join(names_of(unittest.defaultTestLoader.loadTestsFromName(words[1]))))
        return 0
    names = [f"{words[0]}.{name}" for name in words[1:]] or words[:1]
    tests = unittest.defaultTestLoader.loadTestsFromNames(names)
    done = unittest.TextTestRunner(resultclass=Timed, failfast=True, verbosity=0).run(tests)
    return not done.wasSuccessful()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
