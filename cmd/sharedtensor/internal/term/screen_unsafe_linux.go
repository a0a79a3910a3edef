package term

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
	"unsafe"
)

// Screen draws full pages on a terminal and restores it on Leave.
type Screen struct {
	in, out *os.File
	saved   *syscall.Termios // the original modes; nil if standard input is not a terminal
	changes chan os.Signal
}

// OpenScreen returns the terminal of a command, and false if standard output is not a terminal. It does not change the
// terminal; see Enter.
func OpenScreen(in io.Reader, out io.Writer) (*Screen, bool, error) {
	stdin, okIn := in.(*os.File)
	stdout, okOut := out.(*os.File)
	if !okIn || !okOut || !IsTerminal(out) {
		return nil, false, nil
	}
	return &Screen{in: stdin, out: stdout}, true, nil
}

// Enter switches to the alternate screen, hides the cursor, and reads keys without line buffering. Interrupts are still
// signals. Suspending is disabled, because it would leave the alternate screen active.
func (s *Screen) Enter() error {
	var now syscall.Termios
	if err := terminalControl(s.in, syscall.TCGETS, &now); err == nil {
		saved := now
		s.saved = &saved
		now.Lflag &^= syscall.ICANON | syscall.ECHO
		now.Cc[syscall.VSUSP] = 0
		now.Cc[syscall.VMIN], now.Cc[syscall.VTIME] = 0, 2 // a read waits at most 0.2 s for a key
		if err := terminalControl(s.in, syscall.TCSETS, &now); err != nil {
			return err
		}
	}
	s.changes = make(chan os.Signal, 1)
	signal.Notify(s.changes, syscall.SIGWINCH)
	_, err := io.WriteString(s.out, EnterScreen)
	return err
}

// Leave restores the terminal.
func (s *Screen) Leave() error {
	signal.Stop(s.changes)
	_, err := io.WriteString(s.out, LeaveScreen)
	if s.saved != nil {
		err = errors.Join(err, terminalControl(s.in, syscall.TCSETS, s.saved))
	}
	return err
}

// Draw writes to the terminal.
func (s *Screen) Draw(text string) error {
	_, err := io.WriteString(s.out, text)
	return err
}

// Read waits up to 0.2 s for a key.
func (s *Screen) Read(b []byte) (int, error) {
	if s.saved == nil {
		return 0, os.ErrInvalid // no keyboard
	}
	n, err := s.in.Read(b)
	if errors.Is(err, io.EOF) { // no key was pressed, or the terminal was closed, which returns at once
		time.Sleep(10 * time.Millisecond)
		return 0, nil
	}
	return n, err
}

// Size returns the size of the terminal, which can change at any time.
func (s *Screen) Size() (width, height int) {
	size, ok := terminalSize(s.out)
	if !ok || size.columns == 0 || size.rows == 0 {
		return 80, 24
	}
	return int(size.columns), int(size.rows)
}

// Resized returns a channel that receives a signal when the size changes.
func (s *Screen) Resized() <-chan os.Signal { return s.changes }

// terminalControl gets or sets the modes of a terminal.
func terminalControl(f *os.File, request uintptr, modes *syscall.Termios) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(modes)))
	})
	if err == nil && errno != 0 {
		err = os.NewSyscallError("ioctl", errno)
	}
	return err
}
