package command

import (
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/systemd"
)

// listenNotify returns the service manager's side of NOTIFY_SOCKET.
func listenNotify(t testing.TB, name string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// receive returns the next datagram.
func receive(t testing.TB, c *net.UnixConn) string {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(testPatience)))
	b := make([]byte, 4096)
	n, err := c.Read(b)
	require.NoError(t, err)
	return string(b[:n])
}

func TestNotify(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	for _, name := range []string{p.file("notify"), "@sharedtensor-test-" + strconv.Itoa(os.Getpid())} {
		manager := listenNotify(t, name)
		c := p.command("serve", "m="+path)
		c.Env = append(c.Env, "NOTIFY_SOCKET="+name)
		owner := p.start(c)
		require.Regexp(t, `^STATUS=loading m: 0 B of 2\.\d KiB\nEXTEND_TIMEOUT_USEC=30000000$`, receive(t, manager))
		require.Regexp(t, `^READY=1\nSTATUS=serving 1 model`, receive(t, manager))
		p.must("ping", "-c", "1")
		owner.signal(syscall.SIGHUP)
		for text := ""; text != "STATUS=serving 1 model"; { // progress may be reported before
			text = receive(t, manager)
			text = text[:min(len(text), len("STATUS=serving 1 model"))]
		}
		owner.signal(syscall.SIGTERM)
		require.Equal(t, "STOPPING=1", receive(t, manager))
		require.Equal(t, cli.ExitOK, owner.exit(), owner.stderr)
	}
}

func TestNotifyOtherSockets(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for _, name := range []string{"vsock:2:1", "relative", p.file("nobody-listens")} {
		c := p.command("serve")
		c.Env = append(c.Env, "NOTIFY_SOCKET="+name)
		owner := p.start(c)
		require.Regexp(t, `^serving nothing yet`, owner.line())
		eventually(t, "a warning", func() bool { return strings.Contains(owner.stderr.String(), "level=WARN") })
		owner.signal(syscall.SIGTERM)
		require.Equal(t, cli.ExitOK, owner.exit())
	}
	var nobody *systemd.Notifier
	require.NoError(t, nobody.Tell("READY=1"))
	nobody.Progress("m", 0, 0)
}

// activated starts the program with a descriptor and the variables of socket activation. The shell sets LISTEN_PID to
// its own process id and then executes the program.
func (p *place) activated(f *os.File, fds string, args ...string) *process {
	p.t.Helper()
	script := `export LISTEN_PID=$$ LISTEN_FDS=` + fds + `; exec "$@"`
	c := p.command()
	c.Path = "/bin/sh"
	c.Args = append([]string{"sh", "-c", script, "sh", program}, args...)
	c.ExtraFiles = []*os.File{f} // becomes descriptor 3
	return p.start(c)
}

func TestSocketActivation(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	socket := p.file("activated.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	f, err := l.File()
	require.NoError(t, err)
	defer f.Close()

	early := p.start(p.command("get", "m", "--wait", "-o", p.file("copy.safetensors"), "--socket", socket))
	owner := p.activated(f, "1", "serve", "m="+path)
	require.Contains(t, owner.line(), "on "+socket)
	require.Equal(t, cli.ExitOK, early.exit(), "a client that came before the owner is served: %s", early.stderr)
	require.Equal(t, digests(t, path), digests(t, p.file("copy.safetensors")))
	owner.signal(syscall.SIGTERM)
	require.Equal(t, cli.ExitOK, owner.exit(), owner.stderr)
	require.FileExists(t, socket, "the socket is the service manager's")
	require.NoFileExists(t, socket+".lock")

	again := p.activated(f, "1", "serve", "m="+path, "--socket", socket)
	require.Contains(t, again.line(), "on "+socket)
	again.signal(syscall.SIGTERM)
	require.Equal(t, cli.ExitOK, again.exit())

	other := p.activated(f, "1", "serve", "--socket", p.file("other.sock"))
	require.Equal(t, cli.ExitFailure, other.exit())
	require.Contains(t, other.stderr.String(), "omit --socket")
}

func TestSocketActivationRefused(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	stream := func() *os.File {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		f, err := l.(*net.TCPListener).File()
		require.NoError(t, err)
		return f
	}
	datagram := func() *os.File {
		f, err := listenNotify(t, p.file("gram")).File()
		require.NoError(t, err)
		return f
	}
	pair := func() *os.File {
		fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		require.NoError(t, err)
		require.NoError(t, syscall.Close(fds[1]))
		return os.NewFile(uintptr(fds[0]), "pair")
	}
	plain := func() *os.File {
		f, err := os.Create(p.file("plain"))
		require.NoError(t, err)
		return f
	}
	for want, open := range map[string]func() *os.File{
		"it is not a Unix socket":        stream,
		"it is not a stream socket":      datagram,
		"it is not a listening socket":   pair,
		"socket operation on non-socket": plain,
	} {
		f := open()
		owner := p.activated(f, "1", "serve")
		require.NoError(t, f.Close())
		require.Equal(t, cli.ExitFailure, owner.exit())
		require.Contains(t, owner.stderr.String(), want)
	}
	for fds, want := range map[string]string{"2": "passed 2 sockets", "x": "not a number", "-1": "not a number"} {
		f := plain()
		owner := p.activated(f, fds, "serve")
		require.NoError(t, f.Close())
		require.Equal(t, cli.ExitFailure, owner.exit())
		require.Contains(t, owner.stderr.String(), want)
	}
	c := p.command("serve") // LISTEN_PID is that of another process
	c.Env = append(c.Env, "LISTEN_PID=1", "LISTEN_FDS=1")
	require.Contains(t, p.start(c).line(), p.socket())
}
