//go:build race

package attack

// raceDetector reports whether this binary has the race detector.
const raceDetector = true
