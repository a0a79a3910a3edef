package statuswriter_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway/internal/statuswriter"
)

const patience = time.Minute

// serve runs a handler behind a Writer, over HTTP/1.1 or HTTP/2.
func serve(t *testing.T, http2 bool, stall time.Duration, handler func(w *statuswriter.Writer)) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writer := statuswriter.New(w, r, stall)
		defer writer.Finish()
		handler(writer)
	}))
	server.EnableHTTP2 = http2
	if http2 {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server
}

// A write fails if the client does not read for the stall time.
func TestWriteFailsIfUnread(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 1)
			server := serve(t, http2, time.Second, func(w *statuswriter.Writer) {
				_, err := w.Write(make([]byte, 64<<20))
				ended <- err
			})
			response, err := server.Client().Get(server.URL)
			require.NoError(t, err)
			defer response.Body.Close()
			select {
			case err := <-ended:
				require.Error(t, err)
			case <-time.After(patience):
				t.Fatal("the write still waits")
			}
		})
	}
}

// An answer may start and continue long after the stall time, because only blocked writes are limited.
func TestSlowHandlerContinues(t *testing.T) {
	const stall = 200 * time.Millisecond
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, http2, stall, func(w *statuswriter.Writer) {
				for range 3 {
					time.Sleep(2 * stall)
					if _, err := io.WriteString(w, "part "); err != nil || w.FlushError() != nil {
						return
					}
				}
				time.Sleep(2 * stall)
				_, _ = io.WriteString(w, "end")
			})
			for range 2 { // the second answer uses the same connection
				response, err := server.Client().Get(server.URL)
				require.NoError(t, err)
				text, err := io.ReadAll(response.Body)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
				require.Equal(t, "part part part end", string(text))
			}
		})
	}
}
