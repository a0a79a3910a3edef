package command

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// loadGate is a service manager that does not read its messages. An owner blocks in its next progress message until the
// test reads one, so the test controls the progress of loading.
type loadGate struct {
	t       testing.TB
	manager *net.UnixConn
}

func (p *place) newLoadGate() *loadGate {
	p.t.Helper()
	g := &loadGate{p.t, listenNotify(p.t, p.file("notify"))}
	filler, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: p.file("notify"), Net: "unixgram"})
	require.NoError(p.t, err)
	defer filler.Close()
	for err == nil {
		require.NoError(p.t, filler.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
		_, err = filler.Write([]byte("filler"))
	}
	require.ErrorIs(p.t, err, os.ErrDeadlineExceeded)
	return g
}

// step allows the owner to send one message.
func (g *loadGate) step() { receive(g.t, g.manager) }

// open allows the owner to send all messages.
func (g *loadGate) open() {
	go func() {
		b := make([]byte, 4096)
		_ = g.manager.SetReadDeadline(time.Time{})
		for {
			if _, err := g.manager.Read(b); err != nil {
				return
			}
		}
	}()
}

// serveGated starts an owner that reports to the gate.
func (p *place) serveGated(args ...string) *process {
	p.t.Helper()
	c := p.command(append([]string{"serve"}, args...)...)
	c.Env = append(c.Env, "NOTIFY_SOCKET="+p.file("notify"))
	s := p.start(c)
	eventually(p.t, "the owner answers", func() bool { return p.run("ping", "-c", "1").code == cli.ExitOK })
	return s
}

func (p *place) list() []endpoint.ModelInfo {
	p.t.Helper()
	var list []endpoint.ModelInfo
	require.NoError(p.t, json.Unmarshal([]byte(p.must("ls", "--json")), &list))
	return list
}

// An owner answers requests while it loads. It lists pending and failed loads, and each model can be attached once it
// is loaded.
func TestServeAnswersWhileLoading(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	first, second := p.model("a.safetensors", 1), p.model("b.safetensors", 2)
	third := p.model("c.safetensors", 3)
	g := p.newLoadGate()
	owner := p.serveGated("a="+first, "b="+second, "c="+third)

	eventually(t, "the first model is being loaded", func() bool { return p.list()[0].Loading.State == endpoint.LoadRunning })
	list := p.list()
	require.Len(t, list, 3)
	require.Zero(t, list[0].Current)
	require.Empty(t, list[0].Versions)
	require.Zero(t, list[0].Loading.Done)
	require.EqualValues(t, 2186, list[0].Loading.Total)
	require.Equal(t, first, list[0].Loading.Source)
	require.Equal(t, endpoint.LoadWaiting, list[1].Loading.State)
	require.Equal(t, endpoint.LoadWaiting, list[2].Loading.State)
	require.Regexp(t, `(?m)^a +- +2\.1 KiB +- +- +\S+ +loading 0% +`+first+`$`, p.must("ls"))
	require.Regexp(t, `(?m)^b +- +- +- +- +- +waiting +`+second+`$`, p.must("ls"))
	require.Regexp(t, `(?m)^next +loading 0%, 0 B of 2\.1 KiB from `+first, p.must("inspect", "a"))
	require.Contains(t, p.must("inspect", "a", "--json"), `"state": "loading"`)
	require.Regexp(t, `(?m)^a +0 B +2\.1 KiB +loading 0%$`, p.must("top", "--once", "-i", "50ms"))
	require.Contains(t, p.fails(cli.ExitFailure, "get", "a", "-o", p.file("o")), `manifest of "a": owner: still loading: 0%, 0 of 2186 bytes; --wait waits for it`)
	client := p.dial()
	_, err := client.Acquire(context.Background(), "a", endpoint.AcquireOptions{})
	require.ErrorIs(t, err, endpoint.ErrLoading)
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	_, err = client.Info(context.Background(), "d")
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	require.NotErrorIs(t, err, endpoint.ErrLoading)
	require.Contains(t, p.fails(cli.ExitFailure, "get", "b", "-o", p.file("o")), `still loading: it waits for its turn; --wait waits for it`)

	waiting := p.start(p.command("get", "a", "-o", p.file("copy"), "--wait"))
	g.step() // progress of a; the next message is that of b
	require.Equal(t, cli.ExitOK, waiting.exit(), waiting.stderr)
	require.Equal(t, digests(t, first), digests(t, p.file("copy")))
	eventually(t, "the second model is being loaded", func() bool { return p.list()[1].Loading.State == endpoint.LoadRunning })
	list = p.list()
	require.EqualValues(t, 1, list[0].Current)
	require.Nil(t, list[0].Loading)

	require.NoError(t, os.Truncate(third, 100))
	g.open()
	require.Regexp(t, `^serving 2 models, 4\.3 KiB, on \S+, pid \d+; not loaded: c$`, owner.line())
	failed := p.list()[2]
	require.Equal(t, endpoint.LoadFailed, failed.Loading.State)
	require.Contains(t, failed.Loading.Error, "c.safetensors: file is truncated")
	require.Contains(t, p.must("ls"), "failed: ")
	require.Contains(t, p.must("inspect", "c"), "file is truncated")
	_, err = client.Acquire(context.Background(), "c", endpoint.AcquireOptions{})
	require.ErrorContains(t, err, `"c": owner: not found: it could not be loaded: `)
	require.NotErrorIs(t, err, endpoint.ErrLoading)
	require.Contains(t, p.fails(cli.ExitFailure, "get", "c", "-o", p.file("o"), "--wait"), "could not be loaded")

	p.must("publish", "c="+first)
	require.Nil(t, p.list()[2].Loading, "a client has published it")
}

// A reload reports which models have changed and which have not.
func TestReloadReportsChanges(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	first, second := p.model("a.safetensors", 1), p.model("b.safetensors", 2)
	owner := p.serve("b="+second, "a="+first)
	require.NoError(t, os.WriteFile(second, []byte("broken"), 0o600))
	owner.signal(syscall.SIGHUP)
	eventually(t, "the owner logs the reload", func() bool { return strings.Contains(owner.stderr.String(), `msg="loaded again"`) })
	require.Contains(t, owner.stderr.String(), `changed="a version 2" "not changed"=b`)
	require.Regexp(t, `level=ERROR msg="not loaded[^\n]*b\.safetensors: file is truncated`, owner.stderr.String())
	list := p.list()
	require.EqualValues(t, 2, list[0].Current)
	require.EqualValues(t, 1, list[1].Current)
	require.Equal(t, endpoint.LoadFailed, list[1].Loading.State)
}

// An owner that fails to load every model exits.
func TestServeExitsIfAllLoadsFail(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("a.safetensors", 1)
	g := p.newLoadGate()
	c := p.command("serve", "a="+path)
	c.Env = append(c.Env, "NOTIFY_SOCKET="+p.file("notify"))
	owner := p.start(c)
	eventually(t, "the owner answers", func() bool { return p.run("ping", "-c", "1").code == cli.ExitOK })
	require.NoError(t, os.Truncate(path, 1000))
	g.open()
	require.Equal(t, cli.ExitFailure, owner.exit())
	require.Regexp(t, `(?m)^sharedtensor: .*a\.safetensors: `, owner.stderr.String())
	require.NoFileExists(t, p.socket())
}

// No process has a writable mapping of memory that serve and publish have published. Another process of the same user
// cannot change it through /proc.
func TestServedMemoryCannotBeWritten(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	owner := p.serve("m=" + path)
	p.must("publish", "n="+path)
	h := attach(t, p.socket(), "m")
	want := handleDigests(t, h)

	text, err := os.ReadFile("/proc/" + strconv.Itoa(owner.cmd.Process.Pid) + "/maps")
	require.NoError(t, err)
	mem, err := os.OpenFile("/proc/"+strconv.Itoa(owner.cmd.Process.Pid)+"/mem", os.O_RDWR, 0)
	if err != nil {
		require.ErrorIs(t, err, os.ErrPermission, "only a sandbox denies access to memory of the same user")
	}
	defer mem.Close()
	found := 0
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "memfd:") {
			continue
		}
		found++
		require.NotRegexp(t, `^\S+ \S*w`, line)
		// Without permission mem is nil, and this does nothing.
		_, _ = mem.WriteAt([]byte("changed!"), address(t, line)) // the write may modify a private copy of the owner's page
	}
	require.Equal(t, 2, found)
	require.Equal(t, want, handleDigests(t, h))
	require.Equal(t, want, handleDigests(t, attach(t, p.socket(), "m")))
	require.Equal(t, want, handleDigests(t, attach(t, p.socket(), "n")))
}

// address returns the start address in a line of /proc/PID/maps.
func address(t testing.TB, line string) int64 {
	t.Helper()
	begin, _, _ := strings.Cut(line, "-")
	n, err := strconv.ParseInt(begin, 16, 64)
	require.NoError(t, err)
	return n
}

// A client that is answered first waits for models that are still to be loaded: they are announced before Serve.
func TestLoadsAreAnnouncedFirst(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: p.file("s.sock"), Devices: []driver.Device{dev}})
	require.NoError(t, err)
	defer server.Close()
	s := &service{server: server, device: dev, models: []modelArg{{name: "m", path: p.file("missing.safetensors")}}, stderr: io.Discard}
	l := s.newLoader(t.Context())
	l.start()
	models, err := server.List(t.Context())
	require.NoError(t, err)
	require.Len(t, models, 1)
	require.NotNil(t, models[0].Loading)
	require.True(t, l.stop())
}
