package command

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
)

// pty is a terminal whose screen and keyboard are controlled by the test.
type pty struct {
	t      testing.TB
	master *os.File
	slave  *os.File
	screen *safeBuffer
}

func newPTY(t testing.TB, columns, rows uint16) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("there are no pseudo terminals here:", err)
	}
	fd := int(master.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	p := &pty{t: t, master: master, slave: slave, screen: &safeBuffer{}}
	p.resize(columns, rows)
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 1<<16)
		for {
			n, err := master.Read(b)
			if err != nil {
				return
			}
			_, _ = p.screen.Write(b[:n])
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, slave.Close()) // ends the reader
		<-read
		require.NoError(t, master.Close())
	})
	return p
}

func (p *pty) resize(columns, rows uint16) {
	p.t.Helper()
	require.NoError(p.t, unix.IoctlSetWinsize(int(p.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}))
}

func (p *pty) modes() unix.Termios {
	p.t.Helper()
	modes, err := unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS)
	require.NoError(p.t, err)
	return *modes
}

// run starts a command on the terminal.
func (p *pty) run(c *exec.Cmd) {
	p.t.Helper()
	c.Stdin, c.Stdout, c.Stderr = p.slave, p.slave, p.slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // so that ctrl-C and resizing send signals
	require.NoError(p.t, c.Start())
	p.t.Cleanup(func() { _ = c.Process.Kill() })
}

// last returns the last complete drawing, which another drawing follows.
func (p *pty) last() string {
	text := p.screen.String()
	end := max(strings.LastIndex(text, toTheTop), 0)
	return text[strings.LastIndex(text[:end], toTheTop)+1 : end]
}

func TestTopOnTerminal(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{"q": "q", "ctrl-C": "\x03"} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.service()
			terminal := newPTY(t, 80, 24)
			before := terminal.modes()
			c := p.command("top", "-i", "50ms")
			terminal.run(c)
			eventually(t, "it draws", func() bool { return strings.Count(terminal.screen.String(), toTheTop) > 2 })
			require.True(t, strings.HasPrefix(terminal.screen.String(), term.EnterScreen+toTheTop))
			require.NotEqual(t, before, terminal.modes())
			require.Contains(t, terminal.last(), reverse+"MEMORY")

			terminal.resize(40, 7)
			eventually(t, "it follows the size", func() bool { return !strings.Contains(terminal.last(), "ENDPOINT") })
			p.must(append([]string{"submit"}, slow...)...)
			terminal.resize(100, 40)
			eventually(t, "it follows the size and the owner", func() bool { return strings.Contains(terminal.last(), "layer 1 of 1000") })

			_, err := terminal.master.WriteString(end)
			require.NoError(t, err)
			require.NoError(t, c.Wait())
			eventually(t, "the terminal is given back", func() bool { return bytes.HasSuffix([]byte(terminal.screen.String()), []byte(term.LeaveScreen)) })
			require.Equal(t, before, terminal.modes())
		})
	}
}

func TestTopOwnerRestarts(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	owner := p.service()
	terminal := newPTY(t, 120, 40)
	c := p.command("top", "-i", "50ms")
	terminal.run(c)
	eventually(t, "it draws", func() bool { return strings.Contains(terminal.last(), "MEMORY") })
	owner.signal(syscall.SIGKILL)
	eventually(t, "it says that the owner is gone", func() bool { return strings.Contains(terminal.last(), "this is as of") })
	p.service()
	eventually(t, "it shows the next owner", func() bool { return !strings.Contains(terminal.last(), "this is as of") })
	_, err := terminal.master.WriteString("q")
	require.NoError(t, err)
	require.NoError(t, c.Wait())
}

func TestTaskBarOnTerminal(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.service()
	terminal := newPTY(t, 100, 24)
	c := p.command("call", "build_model", "hidden_size=1", "layers=10", "pace_ms=20")
	terminal.run(c)
	require.NoError(t, c.Wait())
	eventually(t, "the result is there", func() bool { return strings.Contains(terminal.screen.String(), "state dict of 10 tensors") })
	require.Regexp(t, `build_model: \d+% layer `, terminal.screen.String())
}
