package term

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Control sequences of ECMA-48 and of xterm, which common terminals support.
const (
	// ClearLine clears the line and moves the cursor to its beginning.
	ClearLine = "\r\x1b[K"
	// EnterScreen switches to the alternate screen, hides the cursor and disables wrapping.
	EnterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	// LeaveScreen undoes EnterScreen.
	LeaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// IsTerminal reports whether a reader or writer is a terminal.
func IsTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// TerminalWidth returns the number of columns of w, or 0 if w is not a terminal or the width is unknown.
func TerminalWidth(w io.Writer) int {
	width, _ := TerminalSize(w)
	return width
}

// TerminalSize returns the size of w, which can change at any time, or 0 if w is not a terminal or the size is unknown.
func TerminalSize(w io.Writer) (width, height int) {
	if f, ok := w.(*os.File); ok {
		if width, height, err := term.GetSize(int(f.Fd())); err == nil {
			return width, height
		}
	}
	return 0, 0
}

// Raw makes a terminal pass each key to the program, ctrl-C too, and returns a function that restores it. It does
// nothing if in is not a terminal.
func Raw(in io.Reader) (restore func() error, err error) {
	if !IsTerminal(in) {
		return func() error { return nil }, nil
	}
	fd := int(in.(*os.File).Fd())
	saved, err := term.MakeRaw(fd)
	return func() error { return term.Restore(fd, saved) }, err
}
