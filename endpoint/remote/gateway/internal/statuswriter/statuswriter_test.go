package statuswriter_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway/internal/statuswriter"
)

// A refused request with a body ends its connection of HTTP/1.1, and only its stream of HTTP/2.
func TestRefusedRequestWithBody(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				sw := statuswriter.New(w, r)
				http.Error(sw, "refused", http.StatusForbidden)
				if sw.Status() != http.StatusForbidden || sw.Bytes() != int64(len("refused\n")) {
					t.Errorf("recorded status %d and %d bytes", sw.Status(), sw.Bytes())
				}
			}))
			server.EnableHTTP2 = http2
			server.StartTLS()
			t.Cleanup(server.Close)
			var reused []bool
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = append(reused, c.Reused) }})
			for range 2 {
				request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("body"))
				require.NoError(t, err)
				response, err := server.Client().Do(request)
				require.NoError(t, err)
				_, err = io.Copy(io.Discard, response.Body)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
				require.Equal(t, http.StatusForbidden, response.StatusCode)
			}
			require.Equal(t, []bool{false, http2}, reused)
		})
	}
}

// A call may be cut when its handler has just returned.
func TestCutAfterEnd(t *testing.T) {
	t.Parallel()
	writers := make(chan *statuswriter.Writer, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sw := statuswriter.New(w, r)
		defer sw.End()
		writers <- sw
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	response, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, 2, response.ProtoMajor)
	require.NotPanics(t, (<-writers).Cut)
}
