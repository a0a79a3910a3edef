package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// Downloads whose clients read nothing end after the stall time, and release the version and their slots.
func TestUnreadDownloadsEnd(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	authority := remotetest.NewAuthority(t)
	cert, key := authority.Issue(t, t.TempDir(), "gateway", time.Now().Add(time.Hour))
	for name, c := range map[string]struct {
		flags []string
		major int
	}{
		"HTTP/1.1":          {nil, 1},
		"HTTP/1.1 over TLS": {[]string{"--tls-cert", cert, "--tls-key", key}, 1},
		"HTTP/2 over TLS":   {[]string{"--tls-cert", cert, "--tls-key", key}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner := remotetest.StartOwner(t, "--model", fmt.Sprintf("m=%d", size))
			gw := remotetest.StartGateway(t, owner.Socket, append(c.flags, "--stall", "2s")...)
			scheme := "http://"
			if c.flags != nil {
				scheme = "https://"
			}
			client := func() *http.Client {
				transport := &http.Transport{TLSClientConfig: authority.TLSConfig(t, "", ""), ForceAttemptHTTP2: c.major == 2}
				if c.major == 1 {
					transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
				}
				t.Cleanup(transport.CloseIdleConnections)
				return &http.Client{Transport: transport}
			}
			admin := client()
			get := func(path string) (int, string) {
				response, err := admin.Get(scheme + gw.Addresses.HTTP + path)
				require.NoError(t, err)
				defer response.Body.Close()
				text, err := io.ReadAll(response.Body)
				require.NoError(t, err)
				return response.StatusCode, string(text)
			}
			remotetest.Eventually(t, func() error {
				if code, text := get("/v1/models/m"); code != http.StatusOK {
					return fmt.Errorf("%d %s", code, text)
				}
				return nil
			})
			dev := remotetest.OpenHost(t)
			holders := func() (n int) {
				info, err := remotetest.Dial(t, owner.Socket, dev).Info(t.Context(), "m")
				require.NoError(t, err)
				for _, v := range info.Versions {
					n += len(v.Holders)
				}
				return n
			}
			before := holders()
			var bodies []io.ReadCloser
			for _, path := range []string{"/v1/models/m/model.safetensors", "/v1/models/m/model.safetensors", "/v1/models/m/model.safetensors"} {
				response, err := client().Get(scheme + gw.Addresses.HTTP + path)
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, response.StatusCode)
				require.Equal(t, c.major, response.ProtoMajor)
				bodies = append(bodies, response.Body)
				t.Cleanup(func() { _ = response.Body.Close() })
			}
			require.Greater(t, holders(), before, "a download holds the version")
			remotetest.Eventually(t, func() error {
				_, text := get("/metrics")
				if n := holders(); n > before || !strings.Contains(text, "\nsharedtensor_gateway_calls 1\n") {
					return fmt.Errorf("%d holders, %d before", n, before)
				}
				return nil
			})
			for _, body := range bodies {
				n, err := io.Copy(io.Discard, body)
				require.Error(t, err)
				require.Less(t, n, int64(size))
			}
		})
	}
}
