//go:build !linux

package term

import "io"

// TerminalWidth returns 0: tables are not cut.
func TerminalWidth(io.Writer) int { return 0 }

// IsTerminal returns false: progress is printed as lines.
func IsTerminal(io.Writer) bool { return false }
