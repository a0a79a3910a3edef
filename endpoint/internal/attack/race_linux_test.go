//go:build race

package main

// raceDetector reports whether this binary has the race detector.
const raceDetector = true
