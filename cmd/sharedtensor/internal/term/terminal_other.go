//go:build !linux

package term

import "io"

// TerminalWidth is 0 here: tables are never cut.
func TerminalWidth(io.Writer) int { return 0 }

// IsTerminal is false here: progress is told in plain lines.
func IsTerminal(io.Writer) bool { return false }
