package models_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

func digestOf(data []byte) string {
	d := sha256.Sum256(data)
	return hex.EncodeToString(d[:])
}

func TestModelFiles(t *testing.T) {
	path, want := remotetest.TiedFile(t)
	owner := remotetest.StartOwner(t, "--file", "a/b@2="+path)
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	const base = "/v1/models/a%2Fb@2@1" // version 1 of a name with a slash and an @

	t.Run("whole file", func(t *testing.T) {
		resp, data := gw.Get(t, base+"/model.safetensors")
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
				resp, data := gw.Get(t, base+"/model.safetensors", "Range", fmt.Sprintf("bytes=%d-%d", begin, end))
				require.Equal(t, http.StatusPartialContent, resp.StatusCode)
				require.Equal(t, want[begin:end+1], data)
			}
		}
		resp, data := gw.Get(t, base+"/model.safetensors", "Range", "bytes=-5")
		require.Equal(t, http.StatusPartialContent, resp.StatusCode)
		require.Equal(t, want[len(want)-5:], data)
		resp, _ = gw.Get(t, base+"/model.safetensors", "Range", fmt.Sprintf("bytes=%d-", len(want)))
		require.Equal(t, http.StatusRequestedRangeNotSatisfiable, resp.StatusCode)
		resp, data = gw.Get(t, base+"/model.safetensors", "Range", "bytes=0-7,16-31")
		require.Equal(t, http.StatusPartialContent, resp.StatusCode)
		require.Contains(t, resp.Header.Get("Content-Type"), "multipart/byteranges")
		require.Contains(t, string(data), string(want[16:32]))
	})
	t.Run("conditions", func(t *testing.T) {
		etag := `"sha256-` + digestOf(want) + `"`
		resp, data := gw.Get(t, base+"/model.safetensors", "If-None-Match", etag)
		require.Equal(t, http.StatusNotModified, resp.StatusCode)
		require.Empty(t, data)
		resp, _ = gw.Get(t, base+"/model.safetensors", "If-Range", etag, "Range", "bytes=0-3")
		require.Equal(t, http.StatusPartialContent, resp.StatusCode)
		resp, _ = gw.Get(t, base+"/model.safetensors", "If-Range", `"another"`, "Range", "bytes=0-3")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		resp, data = gw.Do(t, http.MethodHead, base+"/model.safetensors", nil)
		require.Equal(t, int64(len(want)), resp.ContentLength)
		require.Empty(t, data)
	})
	t.Run("one tensor", func(t *testing.T) {
		resp, data := gw.Get(t, base+"/tensors/norm")
		require.Equal(t, []byte{0x80, 0x3f, 0, 0x40}, data)
		require.Equal(t, "bfloat16", resp.Header.Get("X-Sharedtensor-Dtype"))
		require.Equal(t, "[2]", resp.Header.Get("X-Sharedtensor-Shape"))
		require.Equal(t, `"sha256-`+digestOf(data)+`"`, resp.Header.Get("ETag"))
		for _, name := range []string{"wte/weight", "wte%2Fweight", "lm_head"} {
			resp, data = gw.Get(t, base+"/tensors/"+name)
			require.Equal(t, http.StatusOK, resp.StatusCode)
			require.Len(t, data, 24)
		}
	})
	t.Run("manifest", func(t *testing.T) {
		resp, data := gw.Get(t, base+"/manifest")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Contains(t, string(data), `"tied_to":`)
		require.Contains(t, string(data), `"bytes":28,`)
		require.Contains(t, string(data), `/v1/models/a%2Fb@2@1/tensors/norm`)
	})
	t.Run("chunk hashes", func(t *testing.T) {
		resp, text := gw.Get(t, base+"/manifest?digests=blake3")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		m, err := modelwire.ParseManifest(text, modelwire.Limits{})
		require.NoError(t, err)
		require.Equal(t, modelwire.BLAKE3, m.Hash)
		require.NotContains(t, string(text), "sha256")
		for _, e := range m.Tensors {
			resp, data := gw.Get(t, base+"/tensors/"+url.PathEscape(e.Name)+"?digest=blake3")
			require.Equal(t, e.ETag(), resp.Header.Get("ETag"))
			sums, err := modelwire.SumTensor(modelwire.BLAKE3, int64(len(data)), func(begin, end int64) ([]byte, error) { return data[begin:end], nil })
			require.NoError(t, err)
			require.Equal(t, e.TensorSums, sums)
		}
		resp, text = gw.Get(t, base+"/manifest?digests")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		m, err = modelwire.ParseManifest(text, modelwire.Limits{})
		require.NoError(t, err)
		require.Equal(t, modelwire.SHA256, m.Hash)
	})
	t.Run("what is not there", func(t *testing.T) {
		for _, path := range []string{base + "/tensors/nope", "/v1/models/nope/manifest", "/v1/models/a%2Fb@2@9/model.safetensors", "/v1/models/nope"} {
			resp, text := gw.Get(t, path)
			require.Equal(t, http.StatusNotFound, resp.StatusCode, path)
			require.Contains(t, string(text), `"code":-32004`, path)
		}
	})
}

// digestField returns the SHA-256 of a body for the header.
func digestField(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// largeHeader returns the header of a file with one tensor of n bytes.
func largeHeader(n int) []byte {
	text := fmt.Sprintf(`{"x":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, n, n)
	for len(text)%8 != 0 {
		text += " "
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
}

// compressed returns data in each encoding.
func compressed(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for encoding, open := range map[string]func(w io.Writer) (io.WriteCloser, error){
		"gzip":    func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil },
		"deflate": func(w io.Writer) (io.WriteCloser, error) { return zlib.NewWriter(w), nil },
		"zstd":    func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) },
	} {
		var b bytes.Buffer
		w, err := open(&b)
		require.NoError(t, err)
		_, err = w.Write(data)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		out[encoding] = b.Bytes()
	}
	return out
}

func TestUpload(t *testing.T) {
	_, file := remotetest.TiedFile(t)
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, "--max-model", "1MiB", "--stall", "1s")
	gw.Attached(t)
	const path = "/v1/models/up/model.safetensors"
	sum := sha256.Sum256(file)
	digest := "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"

	for version := 1; version <= 2; version++ {
		resp, text := gw.Do(t, http.MethodPut, path, bytes.NewReader(file), "Repr-Digest", digest)
		require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", text)
		require.JSONEq(t, fmt.Sprintf(`{"name":"up","version":%d,"bytes":28,"tensors":3}`, version), string(text))
	}
	_, again := gw.Get(t, path)
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
			resp, text := gw.Do(t, http.MethodPut, path, bytes.NewReader(c.body), fields...)
			require.Equal(t, c.status, resp.StatusCode, "%s", text)
		})
	}
	t.Run("without a length", func(t *testing.T) { // the client sends chunks
		for name, c := range map[string]struct {
			body   []byte
			status int
		}{
			"the file":        {file, http.StatusCreated},
			"a byte more":     {append(bytes.Clone(file), 0), http.StatusBadRequest},
			"a byte less":     {file[:len(file)-1], http.StatusBadRequest},
			"only a header":   {file[:len(file)-28], http.StatusBadRequest},
			"a large one":     {largeHeader(2 << 20), http.StatusRequestEntityTooLarge},
			"header too long": {lying(1 << 62), http.StatusBadRequest},
			"nothing":         {nil, http.StatusBadRequest},
		} {
			resp, text := gw.Do(t, http.MethodPut, path, io.MultiReader(bytes.NewReader(c.body)), "Repr-Digest", digestField(c.body))
			require.Equal(t, c.status, resp.StatusCode, "%s: %s", name, text)
		}
		_, again := gw.Get(t, path)
		require.Equal(t, file, again)
	})
	t.Run("compressed", func(t *testing.T) {
		for encoding, body := range compressed(t, file) {
			for _, field := range []string{digestField(body), ""} { // a digest covers the bytes that are sent
				resp, text := gw.Do(t, http.MethodPut, path, bytes.NewReader(body), "Content-Encoding", encoding, "Repr-Digest", field)
				require.Equal(t, http.StatusCreated, resp.StatusCode, "%s: %s", encoding, text)
			}
			resp, _ := gw.Do(t, http.MethodPut, path, bytes.NewReader(body), "Content-Encoding", encoding, "Repr-Digest", digest)
			require.Equal(t, http.StatusBadRequest, resp.StatusCode, "digest of the file")
			resp, _ = gw.Do(t, http.MethodPut, path, bytes.NewReader(body[:len(body)-3]), "Content-Encoding", encoding)
			require.Equal(t, http.StatusBadRequest, resp.StatusCode, "incomplete %s", encoding)
			resp, _ = gw.Do(t, http.MethodPut, path, bytes.NewReader(file), "Content-Encoding", encoding)
			require.Equal(t, http.StatusBadRequest, resp.StatusCode, "not %s", encoding)
		}
		bomb := compressed(t, append(largeHeader(2<<20), make([]byte, 2<<20)...))
		resp, text := gw.Do(t, http.MethodPut, path, bytes.NewReader(bomb["gzip"]), "Content-Encoding", "gzip")
		require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode, "%s", text)
		resp, text = gw.Do(t, http.MethodPut, path, bytes.NewReader(file), "Content-Encoding", "br")
		require.Equal(t, http.StatusNotImplemented, resp.StatusCode)
		require.Contains(t, string(text), "use gzip, deflate or zstd")
		_, again := gw.Get(t, path)
		require.Equal(t, file, again)
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
	_, text := gw.Get(t, "/v1/models/up")
	var info struct{ Current uint64 }
	require.NoError(t, json.Unmarshal(text, &info), "%s", text)
	require.Equal(t, uint64(9), info.Current, "only the valid files were published")
}

// A client that prefers it receives 202 with the progress while the digest of a file is computed, which continues without
// the client.
func TestFirstDigestWithProgress(t *testing.T) {
	t.Parallel()
	owner := remotetest.StartOwner(t, "--model", "m=67108864")
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	const path = "/v1/models/m/model.safetensors"
	resp, text := gw.Do(t, http.MethodHead, path, nil, "Prefer", "respond-async, wait=0")
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", text)
	require.Equal(t, "respond-async", resp.Header.Get("Preference-Applied"))
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
	resp, text = gw.Get(t, path, "Prefer", "respond-async, wait=0", "Range", "bytes=0-7")
	if resp.StatusCode == http.StatusAccepted { // a fast machine may be done
		var progress struct {
			Status string
			Bytes  int64
		}
		require.NoError(t, json.Unmarshal(text, &progress), "%s", text)
		require.Equal(t, "hashing", progress.Status)
	}
	remotetest.Eventually(t, func() error {
		resp, text = gw.Get(t, path, "Prefer", "respond-async, wait=0", "Range", "bytes=0-7")
		if resp.StatusCode != http.StatusPartialContent {
			return fmt.Errorf("%s: %s", resp.Status, text)
		}
		return nil
	})
	resp, _ = gw.Get(t, "/v1/models/m/tensors/none", "Prefer", "respond-async")
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
}
