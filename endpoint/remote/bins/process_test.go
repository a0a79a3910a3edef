package bins_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

const childKind = "BINS_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childKind) {
	case "":
		os.Exit(m.Run())
	case "server":
		childServer()
	case "taker":
		childTaker()
	case "member":
		childMember()
	}
}

// childServer runs a server until its standard input ends. Its arguments are the store and the address.
func childServer() {
	server, err := natslink.Start(natslink.ServerOptions{Store: os.Args[1], Listen: os.Args[2], Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = server.Close()
}

// childTaker takes and prints items until it is killed.
func childTaker() {
	conn, err := natslink.Connect(os.Args[1])
	if err == nil {
		var s *bins.Store
		if s, err = bins.Open(context.Background(), conn, bins.Options{Namespace: "test"}); err == nil {
			for err == nil {
				var items []bins.Item
				items, err = s.Take(context.Background(), os.Args[2], bins.TakeOptions{Wait: true})
				for _, item := range items {
					fmt.Println(string(item.Body))
				}
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// child is another process that runs this test binary.
type child struct {
	cmd *exec.Cmd
	in  io.Closer
	out *bufio.Scanner
}

func startChild(t testing.TB, kind string, args ...string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childKind+"="+kind)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{cmd: cmd, in: in, out: bufio.NewScanner(out)}
	t.Cleanup(c.kill)
	return c
}

// kill ends the process with SIGKILL.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func startServer(t testing.TB, dir, address string) *child {
	t.Helper()
	c := startChild(t, "server", dir, address)
	require.True(t, c.out.Scan())
	require.Equal(t, "ready", c.out.Text())
	return c
}

// If the server is killed repeatedly, acknowledged items are stored once, items with an unknown outcome at most once,
// and listeners finally report the actual state.
func TestStoreServerKilled(t *testing.T) {
	dir, address := t.TempDir(), remotetest.FreeAddress(t)
	server := startServer(t, dir, address)
	conn, err := natslink.Connect("nats://" + address)
	require.NoError(t, err)
	defer conn.Close()
	s := open(t, conn, bins.Options{})
	l, err := s.Listen(t.Context(), ">")
	require.NoError(t, err)
	defer l.Close()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	acked, unknown := map[string]bool{}, map[string]bool{}
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := strconv.Itoa(i)
			if _, err := s.Append(ctx, "a", text(name)); err == nil {
				acked[name] = true
			} else if errors.Is(err, bins.ErrOutcomeUnknown) {
				unknown[name] = true
			} else {
				t.Error(err)
				return
			}
		}
	})
	for range 4 {
		time.Sleep(100 * time.Millisecond)
		server.kill()
		time.Sleep(50 * time.Millisecond)
		server = startServer(t, dir, address)
	}
	time.Sleep(100 * time.Millisecond)
	close(stop)
	writer.Wait()

	items, err := s.Peek(ctx, "a")
	require.NoError(t, err)
	seen := map[string]int{}
	for _, item := range items {
		seen[string(item.Body)]++
	}
	for name := range acked {
		require.Equal(t, 1, seen[name], "item %s was acknowledged", name)
	}
	for name, n := range seen {
		require.Equal(t, 1, n, "item %s", name)
		require.True(t, acked[name] || unknown[name], "item %s was never written", name)
	}
	require.Greater(t, len(acked), 10)
	for event, err := range l.Events(ctx) {
		require.NoError(t, err, "no event reported %d items", len(items))
		if event.Items == len(items) {
			break
		}
	}

	// A take during an outage leaves no message for the listener, which must compare the counts.
	server.kill()
	server = startServer(t, dir, address)
	_, err = s.Take(ctx, "a", bins.TakeOptions{})
	require.NoError(t, err)
	for event, err := range l.Events(ctx) {
		require.NoError(t, err)
		if event.Items == 0 {
			break
		}
	}
}

// If processes that take from many bins are killed, no item is delivered twice. Only items that a killed process had
// taken and not yet printed are lost.
func TestTakeTakersKilled(t *testing.T) {
	dir, address := t.TempDir(), remotetest.FreeAddress(t)
	startServer(t, dir, address)
	conn, err := natslink.Connect("nats://" + address)
	require.NoError(t, err)
	defer conn.Close()
	s, ctx := open(t, conn, bins.Options{}), t.Context()
	const total, takers = 150, 4
	got := make(chan string, 2*total)
	var readers sync.WaitGroup
	taker := func() *child {
		c := startChild(t, "taker", "nats://"+address, "a")
		readers.Go(func() {
			for c.out.Scan() {
				got <- c.out.Text()
			}
		})
		return c
	}
	var children []*child
	for range takers {
		children = append(children, taker())
	}
	for i := range total {
		_, err := s.Append(ctx, "a", text(strconv.Itoa(i)))
		require.NoError(t, err)
		if i%40 == 39 {
			children[i/40].kill()
			children = append(children, taker())
		}
	}
	require.Eventually(t, func() bool {
		n, err := s.Count(ctx, "a")
		return err == nil && n == 0
	}, time.Minute, 5*time.Millisecond)
	time.Sleep(200 * time.Millisecond) // lets the takers print their last items
	for _, c := range children {
		c.kill()
	}
	readers.Wait()
	close(got)
	seen := map[string]bool{}
	for item := range got {
		require.False(t, seen[item], "item %s was taken twice", item)
		seen[item] = true
	}
	require.Greater(t, len(seen), total/2)
}
