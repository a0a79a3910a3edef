package handover

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// memory returns a file with the text.
func memory(t testing.TB, text string) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	_, err = f.WriteString(text)
	require.NoError(t, err)
	return f
}

// handover returns both ends of a handover in this process.
func handover(t testing.TB) (*Predecessor, *Successor) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	var conns [2]*wire.Conn
	for i := range conns {
		conns[i], err = connOf(os.NewFile(uintptr(pair[i]), "handover"))
		require.NoError(t, err)
		t.Cleanup(func() { conns[i].Close() })
	}
	return &Predecessor{conn: conns[0]}, &Successor{conn: conns[1]}
}

// More descriptors than fit one frame arrive under their names.
func TestStateInSeveralParts(t *testing.T) {
	p, s := handover(t)
	sent := &State{Catalog: "id", Bound: true, Listener: memory(t, "listener"), Lock: memory(t, "lock"), Files: map[string]*os.File{}}
	for i := range 2*filesPerFrame + 1 {
		name := strconv.Itoa(i)
		sent.Files[name] = memory(t, name)
	}
	done := make(chan error, 1)
	go func() {
		err := s.Await(t.Context(), false)
		if err == nil {
			err = s.Send(sent)
		}
		done <- err
	}()
	got, err := p.Take()
	require.NoError(t, err)
	defer got.Close()
	require.NoError(t, <-done)
	require.Equal(t, sent.Catalog, got.Catalog)
	require.Len(t, got.Files, len(sent.Files))
	for name, f := range got.Files {
		b := make([]byte, len(name))
		_, err := f.ReadAt(b, 0)
		require.NoError(t, err)
		require.Equal(t, name, string(b))
	}
	for want, got := range map[*os.File]*os.File{sent.Listener: got.Listener, sent.Lock: got.Lock} {
		a, err := want.Stat()
		require.NoError(t, err)
		b, err := got.Stat()
		require.NoError(t, err)
		require.True(t, os.SameFile(a, b))
	}
}

// A successor refuses a state that does not fit its descriptors, and closes all that it received.
func TestInvalidState(t *testing.T) {
	for what, parts := range map[string][]struct {
		part
		files int
	}{
		"nothing":                     {{part{}, 0}},
		"no socket":                   {{part{Names: []string{"j1"}}, 1}},
		"fewer descriptors":           {{part{Listener: true, Names: []string{"j1", "v1.0"}}, 2}},
		"more descriptors":            {{part{Listener: true, Names: []string{"j1"}}, 3}},
		"no descriptor of the socket": {{part{Listener: true}, 0}},
		"two sockets":                 {{part{Listener: true, Names: []string{"j1"}, More: true}, 2}, {part{Listener: true}, 1}},
		"a lock later":                {{part{Listener: true, Names: []string{"j1"}, More: true}, 2}, {part{Lock: true}, 1}},
		"parts without end":           {{part{Listener: true, More: true}, 1}},
		"the same name":               {{part{Listener: true, Names: []string{"j1", "j1"}}, 3}},
		"the same name again":         {{part{Listener: true, Names: []string{"j1"}, More: true}, 2}, {part{Names: []string{"j1"}}, 1}},
	} {
		t.Run(what, func(t *testing.T) {
			p, s := handover(t)
			f := memory(t, "x")
			before := drivertest.OpenFiles()
			go func() {
				if s.Await(t.Context(), false) != nil {
					return
				}
				for _, x := range parts {
					body, err := message.Marshal(x.part)
					if err != nil {
						return
					}
					var files []*os.File
					for range x.files {
						files = append(files, f)
					}
					if s.conn.Send(wire.KindResponse, s.lastID, body, files...) != nil {
						return
					}
				}
			}()
			_, err := p.Take()
			require.ErrorIs(t, err, status.ErrProtocol)
			require.Equal(t, before, drivertest.OpenFiles())
		})
	}
}

// Text that is no CBOR ends the handover.
func TestStateOfAnotherFormat(t *testing.T) {
	p, s := handover(t)
	go func() {
		if s.Await(t.Context(), false) == nil {
			_ = s.conn.Send(wire.KindResponse, s.lastID, []byte(strings.Repeat("x", 100)))
		}
	}()
	_, err := p.Take()
	require.ErrorIs(t, err, status.ErrProtocol)
}
