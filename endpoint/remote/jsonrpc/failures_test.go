package jsonrpc_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// Each failure has an error object of JSON-RPC as its body: those of HTTP, of the body, of the sender and of the request.
func TestEveryFailureHasAnErrorObject(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(tokens, []byte("secret-0123456789 all\n"), 0o600))
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, "--token-file", tokens, "--stall", "1s", "--max-request", "1MiB")
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	valid := []string{"Authorization: Bearer secret-0123456789", "Content-Type: application/json"}
	length := func(body string) string { return fmt.Sprintf("Content-Length: %d", len(body)) }
	for name, c := range map[string]struct {
		method string
		fields []string
		body   string
		status int
		code   int
	}{
		"no token":               {"POST", []string{valid[1], length(ping)}, ping, http.StatusUnauthorized, -32007},
		"a wrong token":          {"POST", []string{"Authorization: Bearer other", valid[1], length(ping)}, ping, http.StatusUnauthorized, -32007},
		"of another site":        {"POST", append([]string{"Sec-Fetch-Site: cross-site", length(ping)}, valid...), ping, http.StatusForbidden, -32007},
		"GET":                    {"GET", valid, "", http.StatusMethodNotAllowed, -32600},
		"no type":                {"POST", []string{valid[0], length(ping)}, ping, http.StatusUnsupportedMediaType, -32600},
		"another type":           {"POST", []string{valid[0], "Content-Type: text/plain", length(ping)}, ping, http.StatusUnsupportedMediaType, -32600},
		"another encoding":       {"POST", append([]string{"Content-Encoding: br", length(ping)}, valid...), ping, http.StatusUnsupportedMediaType, -32700},
		"not compressed":         {"POST", append([]string{"Content-Encoding: gzip", length(ping)}, valid...), ping, http.StatusBadRequest, -32700},
		"bad chunks":             {"POST", append([]string{"Transfer-Encoding: chunked"}, valid...), "5\r\n{\"jso\r\nzz\r\n", http.StatusBadRequest, -32700},
		"a body that ends early": {"POST", append([]string{"Content-Length: 100"}, valid...), ping, http.StatusBadRequest, -32700},
		"too large":              {"POST", append([]string{"Content-Length: 2097152"}, valid...), strings.Repeat(" ", 2<<20), http.StatusRequestEntityTooLarge, -32006},
		"empty":                  {"POST", append([]string{"Content-Length: 0"}, valid...), "", http.StatusOK, -32700},
		"no JSON":                {"POST", append([]string{"Content-Length: 1"}, valid...), "{", http.StatusOK, -32700},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", strings.TrimPrefix(gw.HTTP(), "http://"))
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(remotetest.Patience)))
			go func() { // the gateway may answer and close before it has read all
				_, _ = io.WriteString(conn, c.method+" /jsonrpc HTTP/1.1\r\nHost: localhost\r\n"+strings.Join(c.fields, "\r\n")+"\r\n\r\n"+c.body)
				_ = conn.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // dialed above
			}()
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Equal(t, c.status, resp.StatusCode, "%s", text)
			require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
			var answer struct {
				Version string          `json:"jsonrpc"`
				ID      json.RawMessage `json:"id"`
				Error   *rpcError       `json:"error"`
			}
			require.NoError(t, json.Unmarshal(text, &answer), "%s", text)
			require.NotNil(t, answer.Error)
			require.Equal(t, c.code, answer.Error.Code, "%s", text)
			require.Equal(t, "2.0", answer.Version)
			require.Equal(t, "null", string(answer.ID))
		})
	}
}

// A request with the id null is answered; one without an id is a notification. All media types of JSON-RPC are accepted.
func TestNullIsAnID(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	for body, want := range map[string]string{
		`{"jsonrpc":"2.0","id":null,"method":"nope"}`: `"id":null`,
		`{"jsonrpc":"2.0","id":null,"method":"ping"}`: `"result"`,
		`[{"jsonrpc":"2.0","id":null,"method":"ping"},{"jsonrpc":"2.0","method":"ping"},{"jsonrpc":"2.0","id":null,"method":"ping"}]`: `"result"`,
		`{"jsonrpc":"2.0","method":"nope"}`: "",
	} {
		for _, kind := range []string{"application/json", "application/json-rpc", "application/jsonrequest", "Application/JSON-RPC; charset=utf-8"} {
			resp, err := http.Post(gw.HTTP()+"/jsonrpc", kind, strings.NewReader(body))
			require.NoError(t, err)
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Contains(t, string(text), want)
			require.Equal(t, strings.Count(body, `"id":null`), strings.Count(string(text), `"id":null`), "%s: %s", body, text)
		}
	}
}
