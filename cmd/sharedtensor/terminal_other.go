//go:build !linux

package main

import "io"

// terminalWidth is 0 here: tables are never cut.
func terminalWidth(io.Writer) int { return 0 }

// isTerminal is false here: progress is told in plain lines.
func isTerminal(io.Writer) bool { return false }
