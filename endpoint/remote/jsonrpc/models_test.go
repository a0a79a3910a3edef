package jsonrpc_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// get fetches a path. fields alternates header names and values.
func get(t testing.TB, gw *remotetest.Gateway, path string, fields ...string) (*http.Response, []byte) {
	t.Helper()
	return do(t, gw, http.MethodGet, path, nil, fields...)
}

func do(t testing.TB, gw *remotetest.Gateway, method, path string, body io.Reader, fields ...string) (*http.Response, []byte) {
	t.Helper()
	r, err := http.NewRequest(method, gw.HTTP()+path, body)
	require.NoError(t, err)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, text
}

// tiedFile writes a model with two names for one tensor, and returns its path and its bytes.
func tiedFile(t *testing.T) (string, []byte) {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	sd := module.NewStateDict()
	defer sd.Close()
	embed, err := tensor.FromSlice(dev, tensor.Shape{3, 2}, []float32{1, 2, 3, 4, 5, 6})
	require.NoError(t, err)
	require.NoError(t, sd.Set("wte/weight", embed))
	require.NoError(t, sd.Set("lm_head", embed.Clone()))
	norm, err := tensor.FromSlice(dev, tensor.Shape{2}, []tensor.BF16{tensor.NewBF16(1), tensor.NewBF16(2)})
	require.NoError(t, err)
	require.NoError(t, sd.Set("norm", norm))
	sd.Metadata = map[string]string{"format": "pt"}
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, module.Save(t.Context(), path, sd, module.SaveOptions{}))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return path, data
}

func digestOf(data []byte) string {
	d := sha256.Sum256(data)
	return hex.EncodeToString(d[:])
}

func TestModelFiles(t *testing.T) {
	path, want := tiedFile(t)
	owner := remotetest.StartOwner(t, "--file", "a/b@2="+path)
	gw := remotetest.StartGateway(t, owner.Socket)
	attached(t, gw)
	const base = "/v1/models/a%2Fb@2@1" // version 1 of a name with a slash and an @

	t.Run("whole file", func(t *testing.T) {
		resp, data := get(t, gw, base+"/model.safetensors")
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s", data)
		require.Equal(t, want, data, "what package module would write")
		require.Equal(t, int64(len(want)), resp.ContentLength)
		require.Equal(t, `"sha256-`+digestOf(want)+`"`, resp.Header.Get("ETag"))
		require.Equal(t, "1", resp.Header.Get("X-Sharedtensor-Version"))
	})
	t.Run("every range", func(t *testing.T) {
		for begin := 0; begin < len(want); begin += 7 {
			for _, n := range []int{1, 8, 100} {
				end := min(begin+n, len(want)) - 1
				resp, data := get(t, gw, base+"/model.safetensors", "Range", fmt.Sprintf("bytes=%d-%d", begin, end))
				require.Equal(t, http.StatusPartialContent, resp.StatusCode)
				require.Equal(t, want[begin:end+1], data)
			}
		}
		resp, data := get(t, gw, base+"/model.safetensors", "Range", "bytes=-5")
		require.Equal(t, http.StatusPartialContent, resp.StatusCode)
		require.Equal(t, want[len(want)-5:], data)
		resp, _ = get(t, gw, base+"/model.safetensors", "Range", fmt.Sprintf("bytes=%d-", len(want)))
		require.Equal(t, http.StatusRequestedRangeNotSatisfiable, resp.StatusCode)
		resp, data = get(t, gw, base+"/model.safetensors", "Range", "bytes=0-7,16-31")
		require.Equal(t, http.StatusPartialContent, resp.StatusCode)
		require.Contains(t, resp.Header.Get("Content-Type"), "multipart/byteranges")
		require.Contains(t, string(data), string(want[16:32]))
	})
	t.Run("conditions", func(t *testing.T) {
		etag := `"sha256-` + digestOf(want) + `"`
		resp, data := get(t, gw, base+"/model.safetensors", "If-None-Match", etag)
		require.Equal(t, http.StatusNotModified, resp.StatusCode)
		require.Empty(t, data)
		resp, _ = get(t, gw, base+"/model.safetensors", "If-Range", etag, "Range", "bytes=0-3")
		require.Equal(t, http.StatusPartialContent, resp.StatusCode)
		resp, _ = get(t, gw, base+"/model.safetensors", "If-Range", `"another"`, "Range", "bytes=0-3")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		resp, data = do(t, gw, http.MethodHead, base+"/model.safetensors", nil)
		require.Equal(t, int64(len(want)), resp.ContentLength)
		require.Empty(t, data)
	})
	t.Run("one tensor", func(t *testing.T) {
		resp, data := get(t, gw, base+"/tensors/norm")
		require.Equal(t, []byte{0x80, 0x3f, 0, 0x40}, data)
		require.Equal(t, "bfloat16", resp.Header.Get("X-Sharedtensor-Dtype"))
		require.Equal(t, "[2]", resp.Header.Get("X-Sharedtensor-Shape"))
		require.Equal(t, `"sha256-`+digestOf(data)+`"`, resp.Header.Get("ETag"))
		for _, name := range []string{"wte/weight", "wte%2Fweight", "lm_head"} {
			resp, data = get(t, gw, base+"/tensors/"+name)
			require.Equal(t, http.StatusOK, resp.StatusCode)
			require.Len(t, data, 24)
		}
	})
	t.Run("manifest", func(t *testing.T) {
		resp, data := get(t, gw, base+"/manifest")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Contains(t, string(data), `"tied_to":`)
		require.Contains(t, string(data), `"bytes":28,`)
		require.Contains(t, string(data), `/v1/models/a%2Fb@2@1/tensors/norm`)
	})
	t.Run("what is not there", func(t *testing.T) {
		for _, path := range []string{base + "/tensors/nope", "/v1/models/nope/manifest", "/v1/models/a%2Fb@2@9/model.safetensors", "/v1/models/nope"} {
			resp, text := get(t, gw, path)
			require.Equal(t, http.StatusNotFound, resp.StatusCode, path)
			require.Contains(t, string(text), `"code":-32004`, path)
		}
	})
	t.Run("as an argument", func(t *testing.T) {
		params := map[string]any{"name": "sum", "args": []any{map[string]any{"$state_dict": map[string]any{"model": "a/b@2"}}}}
		require.InDelta(t, 2*21+3, result[float64](t, gw, "call_function", params), 0)
		one := map[string]any{"$tensor": map[string]any{"model": "a/b@2", "name": "norm", "version": 1}}
		a := call(t, gw, "call_function", map[string]any{"name": "scale", "kwargs": map[string]any{"x": one, "factor": 3}})
		require.Nil(t, a.Error)
		require.Contains(t, string(a.Result), "AABAQAAAwEA=")
	})
}

func TestUpload(t *testing.T) {
	_, file := tiedFile(t)
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, "--max-model", "1MiB", "--stall", "1s")
	attached(t, gw)
	const path = "/v1/models/up/model.safetensors"
	sum := sha256.Sum256(file)
	digest := "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"

	for version := 1; version <= 2; version++ {
		resp, text := do(t, gw, http.MethodPut, path, bytes.NewReader(file), "Repr-Digest", digest)
		require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", text)
		require.JSONEq(t, fmt.Sprintf(`{"name":"up","version":%d,"bytes":28,"tensors":3}`, version), string(text))
	}
	_, again := get(t, gw, path)
	require.Equal(t, file, again)

	lying := func(n uint64) []byte {
		out := bytes.Clone(file)
		binary.LittleEndian.PutUint64(out, n)
		return out
	}
	other := sha256.Sum256(nil)
	for name, c := range map[string]struct {
		body   []byte
		digest string
		status int
	}{
		"another digest":      {file, "sha-256=:" + base64.StdEncoding.EncodeToString(other[:]) + ":", http.StatusBadRequest},
		"no digest":           {file, "sha-256=:AAAA:", http.StatusBadRequest},
		"a byte more":         {append(bytes.Clone(file), 0), "", http.StatusBadRequest},
		"a byte less":         {file[:len(file)-1], "", http.StatusBadRequest},
		"header too long":     {lying(1 << 62), "", http.StatusBadRequest},
		"header beyond file":  {lying(uint64(len(file))), "", http.StatusBadRequest},
		"no file":             {[]byte("PK\x03\x04"), "", http.StatusBadRequest},
		"nothing":             {nil, "", http.StatusBadRequest},
		"pickle":              {append([]byte{0x80, 0x04}, make([]byte, 100)...), "", http.StatusBadRequest},
		"larger than allowed": {make([]byte, 2<<20), "", http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			fields := []string{}
			if c.digest != "" {
				fields = append(fields, "Repr-Digest", c.digest)
			}
			resp, text := do(t, gw, http.MethodPut, path, bytes.NewReader(c.body), fields...)
			require.Equal(t, c.status, resp.StatusCode, "%s", text)
		})
	}
	t.Run("without a length", func(t *testing.T) {
		resp, _ := do(t, gw, http.MethodPut, path, io.MultiReader(bytes.NewReader(file)))
		require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	})
	t.Run("broken off", func(t *testing.T) {
		conn, err := net.Dial("tcp", gw.Addresses.HTTP)
		require.NoError(t, err)
		fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", path, len(file))
		_, err = conn.Write(file[:len(file)-4])
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	})
	t.Run("stalled", func(t *testing.T) {
		conn, err := net.Dial("tcp", gw.Addresses.HTTP)
		require.NoError(t, err)
		defer conn.Close()
		fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", path, len(file))
		_, err = conn.Write(file[:len(file)-4])
		require.NoError(t, err)
		answer, err := io.ReadAll(conn) // the gateway closes the connection
		require.NoError(t, err)
		require.Contains(t, string(answer), "400")
	})
	info := result[struct {
		Info struct{ Current uint64 } `json:"info"`
	}](t, gw, "inspect_model", []string{"up"})
	require.Equal(t, uint64(2), info.Info.Current, "none of these was published")
}

func TestPublishFrom(t *testing.T) {
	path, file := tiedFile(t)
	root := filepath.Dir(path)
	outside := filepath.Join(t.TempDir(), "outside.safetensors")
	require.NoError(t, os.WriteFile(outside, file, 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "link.safetensors")))
	owner := remotetest.StartOwner(t)
	first := remotetest.StartGateway(t, owner.Socket, "--publish-root", root)
	attached(t, first)
	second := remotetest.StartGateway(t, owner.Socket, "--fetch", first.HTTP()+"/v1/models/")
	attached(t, second)

	out := result[map[string]any](t, first, "publish_from", map[string]string{"name": "m", "path": "model.safetensors"})
	require.InDelta(t, 1, out["version"], 0)
	url := first.HTTP() + "/v1/models/m/model.safetensors"
	out = result[map[string]any](t, second, "publish_from", map[string]string{"name": "n", "url": url, "sha256": digestOf(file)})
	require.InDelta(t, 1, out["version"], 0)
	_, again := get(t, second, "/v1/models/n/model.safetensors")
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
	attached(t, gw)
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
	_, file := tiedFile(t)
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
			attached(t, gw)
			resp, text := do(t, gw, http.MethodPut, "/v1/models/m/model.safetensors", bytes.NewReader(file), c.fields...)
			require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s", text)
			resp, _ = do(t, gw, http.MethodDelete, "/v1/models/m", nil, c.fields...)
			require.Equal(t, http.StatusForbidden, resp.StatusCode)
			body := `{"jsonrpc":"2.0","id":1,"method":"withdraw","params":["m"]}`
			_, text = do(t, gw, http.MethodPost, "/jsonrpc", bytes.NewBufferString(body), append(c.fields, "Content-Type", "application/json")...)
			require.Contains(t, string(text), "-32007")
			resp, _ = get(t, gw, "/v1/models/m/manifest", c.fields...)
			require.Equal(t, http.StatusOK, resp.StatusCode)
		})
	}
}
