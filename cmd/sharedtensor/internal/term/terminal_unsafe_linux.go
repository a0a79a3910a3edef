package term

import (
	"io"
	"os"
	"syscall"
	"unsafe"
)

// windowSize is struct winsize of ioctl_tty(2).
type windowSize struct{ rows, columns, xPixels, yPixels uint16 }

// TerminalWidth returns the number of columns of w, or 0 if w is not a terminal or the width is unknown.
func TerminalWidth(w io.Writer) int {
	size, ok := terminalSize(w)
	if !ok {
		return 0
	}
	return int(size.columns)
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	_, ok := terminalSize(w)
	return ok
}

func terminalSize(w io.Writer) (size windowSize, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile {
		return size, false
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return size, false
	}
	err = raw.Control(func(fd uintptr) {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
		ok = errno == 0
	})
	return size, ok && err == nil
}
