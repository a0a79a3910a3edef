package edge_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/edge"
)

// patience limits steps of a few stall times.
const patience = time.Minute

// start serves a handler behind the edge, over HTTP/1.1 or HTTP/2.
func start(t *testing.T, http2 bool, stall time.Duration, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server, _ := startCounted(t, http2, stall, handler)
	return server
}

// startCounted is start with the listener.
func startCounted(t *testing.T, http2 bool, stall time.Duration, handler http.HandlerFunc) (*httptest.Server, *edge.Listener) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	listener := edge.Listen(server.Listener, 0, stall)
	server.Listener = listener
	edge.Protect(server.Config, stall)
	server.EnableHTTP2 = http2
	if http2 {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server, listener
}

// A connection whose peer makes no progress with a transfer is counted once. A slow or idle one is not counted.
func TestStalledConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, http2 bool) {
		ended := make(chan error, 1)
		server, listener := startCounted(t, http2, time.Second, func(w http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			if err == nil && r.URL.Path == "/unread" {
				_, err = w.Write(make([]byte, 64<<20))
			}
			ended <- err
		})
		post := func(path string, body io.Reader) *http.Response {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, body)
			require.NoError(t, err)
			response, err := (&http.Client{Transport: server.Client().Transport.(*http.Transport).Clone()}).Do(request)
			if err == nil {
				t.Cleanup(func() { _ = response.Body.Close() })
			}
			return response
		}
		_ = post("/", bytes.NewReader(make([]byte, 1<<20)))
		require.NoError(t, within(t, ended))
		require.Zero(t, listener.Stalled())
		_ = post("/unread", nil)
		require.Error(t, within(t, ended))
		require.EqualValues(t, 1, listener.Stalled())
		missing, sent := io.Pipe()
		defer sent.Close()
		go post("/", io.MultiReader(bytes.NewReader([]byte("begin")), missing))
		require.Error(t, within(t, ended))
		require.EqualValues(t, 2, listener.Stalled())
	})
}

// each runs a test over both versions of HTTP.
func each(t *testing.T, run func(t *testing.T, http2 bool)) {
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, http2)
		})
	}
}

func within(t *testing.T, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		t.Fatal("it did not end")
		return nil
	}
}

// A write fails if the client does not read for the stall time.
func TestWriteFailsIfUnread(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, http2 bool) {
		ended := make(chan error, 1)
		server := start(t, http2, time.Second, func(w http.ResponseWriter, _ *http.Request) {
			_, err := w.Write(make([]byte, 64<<20))
			ended <- err
		})
		response, err := server.Client().Get(server.URL)
		require.NoError(t, err)
		defer response.Body.Close()
		require.Error(t, within(t, ended))
	})
}

// A client that reads slowly gets the whole answer, although it takes many stall times.
func TestSlowClientReceivesAll(t *testing.T) {
	t.Parallel()
	const stall, size = 6 * time.Second, 32 << 20
	file := filepath.Join(t.TempDir(), "file")
	content := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	require.NoError(t, os.WriteFile(file, content, 0o600))
	for name, handler := range map[string]http.HandlerFunc{
		"memory": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) },
		"file":   func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, file) },
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, http2 bool) {
				server := start(t, http2, stall, handler)
				response, err := server.Client().Get(server.URL)
				require.NoError(t, err)
				defer response.Body.Close()
				var got bytes.Buffer
				for err == nil {
					_, err = io.CopyN(&got, response.Body, size/16)
					time.Sleep(stall / 14)
				}
				require.ErrorIs(t, err, io.EOF)
				require.True(t, bytes.Equal(content, got.Bytes()))
			})
		})
	}
}

// An answer may start and continue long after the stall time, also if the request had a body.
func TestSlowHandlerContinues(t *testing.T) {
	t.Parallel()
	const stall = 400 * time.Millisecond
	each(t, func(t *testing.T, http2 bool) {
		server := start(t, http2, stall, func(w http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			for range 2 {
				time.Sleep(stall + stall/2)
				if _, more := io.WriteString(w, "part "); errors.Join(err, more, r.Context().Err(), http.NewResponseController(w).Flush()) != nil {
					return
				}
			}
			time.Sleep(stall + stall/2)
			_, _ = io.WriteString(w, "end")
		})
		for _, size := range []int{0, 1 << 20} { // the later requests use the same connection
			response, err := server.Client().Post(server.URL, "", bytes.NewReader(make([]byte, size)))
			require.NoError(t, err)
			text, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, "part part end", string(text))
			time.Sleep(stall + stall/2)
		}
	})
}

// A body arrives in full if its client sends something within each stall time, and also if the handler pauses for longer.
func TestSlowBodyArrives(t *testing.T) {
	t.Parallel()
	const stall, piece = 3 * time.Second, 10
	each(t, func(t *testing.T, http2 bool) {
		server := start(t, http2, stall, func(w http.ResponseWriter, r *http.Request) {
			text := make([]byte, piece)
			_, err := io.ReadFull(r.Body, text)
			time.Sleep(stall + stall/4)
			rest, err2 := io.ReadAll(r.Body)
			if errors.Join(err, err2) != nil {
				http.Error(w, errors.Join(err, err2).Error(), http.StatusBadRequest)
				return
			}
			_, _ = w.Write(append(text, rest...))
		})
		reader, writer := io.Pipe()
		go func() {
			for range 12 {
				_, _ = writer.Write(bytes.Repeat([]byte("x"), piece))
				time.Sleep(stall / 10)
			}
			writer.Close()
		}()
		response, err := server.Client().Post(server.URL, "", reader)
		require.NoError(t, err)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode, "%s", text)
		require.Len(t, text, 12*piece)
	})
}

// A read of a body that does not arrive ends after the stall time.
func TestMissingBodyEnds(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, http2 bool) {
		ended := make(chan error, 1)
		server := start(t, http2, 500*time.Millisecond, func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.ReadAll(r.Body)
			ended <- err
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		reader, _ := io.Pipe()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, reader)
		require.NoError(t, err)
		go func() {
			if response, err := server.Client().Do(request); err == nil {
				_ = response.Body.Close()
			}
		}()
		require.ErrorIs(t, within(t, ended), os.ErrDeadlineExceeded)
	})
}

// A connection that owes nothing may be idle. After End, the rest has one stall time in total.
func TestExpectations(t *testing.T) {
	t.Parallel()
	const stall = time.Second
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := edge.Listen(raw, 1, stall)
	defer l.Close()
	client, err := net.Dial("tcp", raw.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	conn, err := l.Accept()
	require.NoError(t, err)
	defer conn.Close()
	read := make(chan error)
	go func() {
		buffer := make([]byte, 1)
		for {
			_, err := conn.Read(buffer)
			read <- err
		}
	}()
	quiet := func() {
		t.Helper()
		select {
		case err := <-read:
			require.NoError(t, err, "an idle connection")
			t.Fatal("nothing was sent")
		case <-time.After(2 * stall):
		}
	}
	send := func() {
		t.Helper()
		_, err := client.Write([]byte("x"))
		require.NoError(t, err)
	}
	quiet()
	edge.Of(conn).Expect(edge.More) // for the read after the blocked one
	send()
	require.NoError(t, <-read)
	edge.Of(conn).Expect(edge.Nothing)
	quiet()
	edge.Of(conn).Expect(edge.End)
	ended := false
	for begin := time.Now(); !ended && time.Since(begin) < patience; {
		send()
		err := <-read
		ended = errors.Is(err, os.ErrDeadlineExceeded)
		if !ended {
			require.NoError(t, err)
		}
		time.Sleep(stall / 20)
	}
	require.True(t, ended, "bytes extended the deadline")
}
