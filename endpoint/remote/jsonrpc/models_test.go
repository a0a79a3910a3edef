package jsonrpc_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

func digestOf(data []byte) string {
	d := sha256.Sum256(data)
	return hex.EncodeToString(d[:])
}

func TestModelsAsArguments(t *testing.T) {
	path, _ := remotetest.TiedFile(t)
	owner := remotetest.StartOwner(t, "--file", "a/b@2="+path)
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	params := map[string]any{"name": "sum", "args": []any{map[string]any{"$state_dict": map[string]any{"model": "a/b@2"}}}}
	require.InDelta(t, 2*21+3, result[float64](t, gw, "call_function", params), 0)
	one := map[string]any{"$tensor": map[string]any{"model": "a/b@2", "name": "norm", "version": 1}}
	a := call(t, gw, "call_function", map[string]any{"name": "scale", "kwargs": map[string]any{"x": one, "factor": 3}})
	require.Nil(t, a.Error)
	require.Contains(t, string(a.Result), "AABAQAAAwEA=")
}

func TestPublishFrom(t *testing.T) {
	path, file := remotetest.TiedFile(t)
	root := filepath.Dir(path)
	outside := filepath.Join(t.TempDir(), "outside.safetensors")
	require.NoError(t, os.WriteFile(outside, file, 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "link.safetensors")))
	owner := remotetest.StartOwner(t)
	first := remotetest.StartGateway(t, owner.Socket, "--publish-root", root)
	first.Attached(t)
	second := remotetest.StartGateway(t, owner.Socket, "--fetch", first.HTTP()+"/v1/models/")
	second.Attached(t)

	out := result[map[string]any](t, first, "publish_from", map[string]string{"name": "m", "path": "model.safetensors"})
	require.InDelta(t, 1, out["version"], 0)
	url := first.HTTP() + "/v1/models/m/model.safetensors"
	out = result[map[string]any](t, second, "publish_from", map[string]string{"name": "n", "url": url, "sha256": digestOf(file)})
	require.InDelta(t, 1, out["version"], 0)
	_, again := second.Get(t, "/v1/models/n/model.safetensors")
	require.Equal(t, file, again)

	norm := map[string]any{"$tensor": map[string]any{
		"dtype": "bfloat16", "shape": []int{2}, "url": first.HTTP() + "/v1/models/m/tensors/norm", "sha256": digestOf([]byte{0x80, 0x3f, 0, 0x40}),
	}}
	a := call(t, second, "call_function", map[string]any{"name": "scale", "kwargs": map[string]any{"x": norm, "factor": 3}})
	require.Nil(t, a.Error, "%+v", a.Error)
	require.Contains(t, string(a.Result), "AABAQAAAwEA=")

	for name, c := range map[string]struct {
		params map[string]string
		code   int
	}{
		"out of the folder": {map[string]string{"name": "x", "path": "../" + filepath.Base(filepath.Dir(outside)) + "/outside.safetensors"}, -32007},
		"absolute":          {map[string]string{"name": "x", "path": outside}, -32007},
		"by a link":         {map[string]string{"name": "x", "path": "link.safetensors"}, -32007},
		"not there":         {map[string]string{"name": "x", "path": "nope.safetensors"}, -32004},
		"url where none is": {map[string]string{"name": "x", "url": url, "sha256": digestOf(file)}, -32007},
		"neither":           {map[string]string{"name": "x"}, -32602},
		"both":              {map[string]string{"name": "x", "path": "a", "url": "b"}, -32602},
	} {
		t.Run(name, func(t *testing.T) {
			bad := failed(t, first, "publish_from", c.params)
			require.Equal(t, c.code, bad.Code, bad.Message)
			require.NotContains(t, bad.Message, root, "peers are not told where the folder is")
		})
	}
	for name, params := range map[string]map[string]string{
		"another host": {"name": "x", "url": "http://127.0.0.1:1/v1/models/", "sha256": digestOf(file)},
		"another path": {"name": "x", "url": first.HTTP() + "/healthz", "sha256": digestOf(file)},
		"dots":         {"name": "x", "url": first.HTTP() + "/v1/models/../../healthz", "sha256": digestOf(file)},
		"user in it":   {"name": "x", "url": "http://a@" + first.Addresses.HTTP + "/v1/models/m", "sha256": digestOf(file)},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, -32007, failed(t, second, "publish_from", params).Code)
		})
	}
	t.Run("another digest", func(t *testing.T) {
		bad := failed(t, second, "publish_from", map[string]string{"name": "x", "url": url, "sha256": digestOf(nil)})
		require.Equal(t, -32602, bad.Code)
		require.Contains(t, bad.Message, digestOf(file))
	})
}

func TestWithdrawAndHolders(t *testing.T) {
	owner := remotetest.StartOwner(t, "--model", "m=4096")
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	type versions struct {
		Versions []struct {
			Version uint64
			Newest  bool
			Holders []map[string]any
		}
	}
	list := result[versions](t, gw, "holders", []string{"m"})
	require.Len(t, list.Versions, 1)
	require.True(t, list.Versions[0].Newest)
	require.Empty(t, list.Versions[0].Holders)
	require.Equal(t, map[string]bool{"withdrawn": true}, result[map[string]bool](t, gw, "withdraw", []string{"m"}))
	require.Equal(t, -32004, failed(t, gw, "withdraw", []string{"m"}).Code)
	require.Equal(t, -32004, failed(t, gw, "holders", []string{"m"}).Code)
	require.Equal(t, 1, result[map[string]int](t, gw, "invalidate", map[string]any{"name": "echo", "args": warm(t, gw)})["invalidated"])
	require.Equal(t, 0, result[map[string]int](t, gw, "invalidate", []string{"echo"})["invalidated"])
}

// warm caches a result of echo and returns the arguments of the call.
func warm(t *testing.T, gw *remotetest.Gateway) []string {
	t.Helper()
	args := []string{"warm"}
	require.Equal(t, "warm", result[string](t, gw, "call_function", map[string]any{"name": "echo", "args": args}))
	return args
}

func TestReadOnly(t *testing.T) {
	_, file := remotetest.TiedFile(t)
	owner := remotetest.StartOwner(t, "--model", "m=4096")
	tokens := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(tokens, []byte("0123456789abcdef-write alice\n0123456789abcdef-read bob read-only\n"), 0o600))
	for name, c := range map[string]struct {
		args   []string
		fields []string
	}{
		"gateway": {[]string{"--read-only"}, nil},
		"token":   {[]string{"--token-file", tokens}, []string{"Authorization", "Bearer 0123456789abcdef-read"}},
	} {
		t.Run(name, func(t *testing.T) {
			gw := remotetest.StartGateway(t, owner.Socket, c.args...)
			gw.Attached(t)
			resp, text := gw.Do(t, http.MethodPut, "/v1/models/m/model.safetensors", bytes.NewReader(file), c.fields...)
			require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s", text)
			resp, _ = gw.Do(t, http.MethodDelete, "/v1/models/m", nil, c.fields...)
			require.Equal(t, http.StatusForbidden, resp.StatusCode)
			body := `{"jsonrpc":"2.0","id":1,"method":"withdraw","params":["m"]}`
			_, text = gw.Do(t, http.MethodPost, "/jsonrpc", bytes.NewBufferString(body), append(c.fields, "Content-Type", "application/json")...)
			require.Contains(t, string(text), "-32007")
			resp, _ = gw.Get(t, "/v1/models/m/manifest", c.fields...)
			require.Equal(t, http.StatusOK, resp.StatusCode)
		})
	}
}
