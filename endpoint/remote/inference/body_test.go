package inference_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// pack compresses a body as HTTP names the encoding.
func pack(t *testing.T, encoding string, body []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	var w io.WriteCloser
	switch encoding {
	case "gzip":
		w = gzip.NewWriter(&packed)
	case "deflate":
		w = zlib.NewWriter(&packed)
	case "zstd":
		z, err := zstd.NewWriter(&packed)
		require.NoError(t, err)
		w = z
	default:
		return body
	}
	_, err := w.Write(body)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return packed.Bytes()
}

// A body is verified to its end before the function runs, whether its length is announced or not and however it is
// compressed.
func TestBodiesAreReadToTheirEnd(t *testing.T) {
	gw := serve(t, remotetest.StartOwner(t))
	head := `{"inputs":[{"name":"x","datatype":"FP32","shape":[4],"parameters":{"binary_data_size":16}}]}`
	apart := append([]byte(head), elements(4)...)
	plain := []byte(`{"inputs":[{"name":"x","datatype":"FP32","shape":[4],"data":[0,1,2,3]}]}`)
	flip := func(b []byte, back int) []byte {
		b = bytes.Clone(b)
		b[len(b)-back] ^= 1
		return b
	}
	doubles := []byte(head)
	for i := range 4 {
		doubles = binary.LittleEndian.AppendUint64(doubles, math.Float64bits(float64(i)))
	}
	post := func(encoding string, apart, chunked bool, body []byte) (int, string) {
		var from io.Reader = bytes.NewReader(body)
		if chunked {
			from = io.MultiReader(from) // hides the length
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gw.HTTP()+"/v2/models/identity/infer", from)
		require.NoError(t, err)
		if encoding != "" {
			r.Header.Set("Content-Encoding", encoding)
		}
		if apart {
			r.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(head)))
		}
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(text)
	}
	for _, encoding := range []string{"", "gzip", "GZIP", "deflate", "zstd"} {
		lower := map[string]string{"GZIP": "gzip"}[encoding]
		if lower == "" {
			lower = encoding
		}
		good, text := pack(t, lower, apart), pack(t, lower, plain)
		rows := []struct {
			name  string
			apart bool
			body  []byte
			want  int
		}{
			{"elements apart", true, good, http.StatusOK},
			{"elements in the JSON", false, text, http.StatusOK},
			{"blanks after the JSON", false, pack(t, lower, append(bytes.Clone(plain), "\r\n "...)), http.StatusOK},
			{"Float64 for FP32", true, pack(t, lower, doubles), http.StatusBadRequest},
			{"one byte more", true, pack(t, lower, append(bytes.Clone(apart), 0)), http.StatusBadRequest},
			{"one byte less", true, pack(t, lower, apart[:len(apart)-1]), http.StatusBadRequest},
			{"garbage after the JSON", false, pack(t, lower, append(bytes.Clone(plain), "garbage"...)), http.StatusBadRequest},
			{"a second JSON", false, pack(t, lower, append(bytes.Clone(plain), plain...)), http.StatusBadRequest},
			{"a NUL after the JSON", false, pack(t, lower, append(bytes.Clone(plain), 0)), http.StatusBadRequest},
		}
		if encoding != "" {
			for kind, body := range map[string][]byte{"apart": good, "JSON": text} {
				is := kind == "apart"
				rows = append(rows, []struct {
					name  string
					apart bool
					body  []byte
					want  int
				}{
					{"wrong checksum, " + kind, is, flip(body, map[string]int{"gzip": 8}[lower]+map[string]int{"deflate": 4, "zstd": 4}[lower]), http.StatusBadRequest},
					{"the last byte is missing, " + kind, is, body[:len(body)-1], http.StatusBadRequest},
					{"no checksum, " + kind, is, body[:len(body)-4], http.StatusBadRequest},
					{"half, " + kind, is, body[:len(body)/2], http.StatusBadRequest},
					{"bytes behind, " + kind, is, append(bytes.Clone(body), "garbage"...), http.StatusBadRequest},
				}...)
			}
		}
		for _, row := range rows {
			for _, chunked := range []bool{false, true} {
				code, told := post(encoding, row.apart, chunked, row.body)
				require.Equal(t, row.want, code, "%s, encoding %q, chunked %v: %s", row.name, encoding, chunked, told)
			}
		}
	}
	_, stats := gw.Get(t, "/v2/models/identity/stats")
	var got struct {
		Stats []struct {
			Executions int `json:"execution_count"`
		} `json:"model_stats"`
	}
	require.NoError(t, json.Unmarshal(stats, &got))
	require.Equal(t, 5*3*2, got.Stats[0].Executions, "the function ran for valid bodies only")
}

// Bodies of the repository and of settings are one JSON object each.
func TestControlBodiesAreOneObject(t *testing.T) {
	gw := serve(t, remotetest.StartOwner(t))
	for body, want := range map[string]int{"": 200, " ": 200, "{}": 200, "{}x": 400, "{}{}": 400, "{": 400, "[]": 400} {
		for _, chunked := range []bool{false, true} {
			var from io.Reader = bytes.NewReader([]byte(body))
			if chunked {
				from = io.MultiReader(from)
			}
			answer, text := gw.Do(t, http.MethodPost, "/v2/repository/index", from)
			require.Equal(t, want, answer.StatusCode, "%q, chunked %v: %s", body, chunked, text)
		}
	}
}

// infer sends JSON to a model and returns the status and the response.
func infer(t *testing.T, gw *remotetest.Gateway, model, body string) (int, string) {
	t.Helper()
	answer, text := gw.Do(t, http.MethodPost, "/v2/models/"+model+"/infer", bytes.NewReader([]byte(body)))
	return answer.StatusCode, string(text)
}

// Numbers are classified in their own type, and printed as Triton prints them.
func TestClassificationIsExact(t *testing.T) {
	gw := serve(t, remotetest.StartOwner(t))
	for _, row := range []struct{ datatype, data, want string }{
		{"INT64", "[9007199254740992,9007199254740993,-9223372036854775808]", `["9007199254740993:1","9007199254740992:0","-9223372036854775808:2"]`},
		{"UINT64", "[18446744073709551614,18446744073709551615,0]", `["18446744073709551615:1","18446744073709551614:0","0:2"]`},
		{"INT32", "[16777216,16777217,-1]", `["16777217:1","16777216:0","-1:2"]`},
		{"UINT8", "[1,255,0]", `["255:1","1:0","0:2"]`},
		{"FP64", "[1.0000000001,1.0000000002,1e300]", fmt.Sprintf(`["%f:2","1.000000:1","1.000000:0"]`, 1e300)},
		{"FP32", "[0.1,-0.0,Infinity]", `["inf:2","0.100000:0","-0.000000:1"]`},
		{"FP16", "[1,2,3]", `["3.000000:2","2.000000:1","1.000000:0"]`},
	} {
		code, text := infer(t, gw, "identity", fmt.Sprintf(
			`{"inputs":[{"name":"x","datatype":%q,"shape":[3],"data":%s}],"outputs":[{"name":"output","parameters":{"classification":3}}]}`, row.datatype, row.data))
		require.Equal(t, http.StatusOK, code, "%s: %s", row.datatype, text)
		var got struct {
			Outputs []struct {
				Data json.RawMessage `json:"data"`
			} `json:"outputs"`
		}
		require.NoError(t, json.Unmarshal([]byte(text), &got))
		require.JSONEq(t, row.want, string(got.Outputs[0].Data), row.datatype)
	}
}

// Elements arrive and return with their sign and value, or are refused. The expected bits are NumPy's.
func TestNumbersInJSONKeepTheirValue(t *testing.T) {
	gw := serve(t, remotetest.StartOwner(t))
	for _, row := range []struct{ datatype, number, want string }{
		{"FP16", "65504", "65504.0"}, {"FP16", "65519.99", "65504.0"}, {"FP16", "65520", ""}, {"FP16", "-65520", ""}, {"FP16", "1e300", ""},
		{"FP16", "1.000488281251", "1.0009766"}, // over the middle of 1 and 1+2^-10, to which float32 would round it
		{"FP16", "-0.0", "-0.0"}, {"FP16", "-0", "-0.0"}, {"FP16", "Infinity", "Infinity"},
		{"BF16", "3.4e38", ""}, {"BF16", "3.3895e38", "3.3895314e+38"}, {"BF16", "-0.0", "-0.0"},
		{"FP32", "3.5e38", ""}, {"FP32", "-0.0", "-0.0"}, {"FP32", "-0", "-0.0"}, {"FP32", "1", "1.0"}, {"FP32", "-1e-50", "-0.0"},
		{"FP64", "1e309", ""}, {"FP64", "-0.0", "-0.0"}, {"FP64", "1e21", "1e+21"}, {"FP64", "0.1", "0.1"},
	} {
		code, text := infer(t, gw, "identity", fmt.Sprintf(`{"inputs":[{"name":"x","datatype":%q,"shape":[1],"data":[%s]}]}`, row.datatype, row.number))
		if row.want == "" {
			require.Equal(t, http.StatusBadRequest, code, "%s %s: %s", row.datatype, row.number, text)
			continue
		}
		require.Equal(t, http.StatusOK, code, "%s %s: %s", row.datatype, row.number, text)
		require.Contains(t, text, `"data":[`+row.want+`]`, "%s %s", row.datatype, row.number)
	}
	code, text := infer(t, gw, "mixed", `{"inputs":[{"name":"label","datatype":"BYTES","shape":[1],"data":["l"]}],"parameters":{"deep.rate":-0.0},"outputs":[{"name":"rate"}]}`)
	require.Equal(t, http.StatusOK, code, text)
	require.Contains(t, text, `"data":[-0.0]`)
}

// Byte strings reach a function as such, whether they are UTF-8 or not. Texts are never changed.
func TestBytesAreIndependentOfUTF8(t *testing.T) {
	gw := serve(t, remotetest.StartOwner(t))
	send := func(input string, raw []byte) (int, string) {
		head := fmt.Sprintf(`{"inputs":[{"name":"label","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":5}},`+
			`{"name":%q,"datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":%d}}],"outputs":[{"name":"blob","parameters":{"binary_data":true}}]}`, input, len(raw)+4)
		body := append([]byte(head), "\x01\x00\x00\x00l"...)
		body = append(binary.LittleEndian.AppendUint32(body, uint32(len(raw))), raw...)
		answer, text := gw.Do(t, http.MethodPost, "/v2/models/mixed/infer", bytes.NewReader(body), "Inference-Header-Content-Length", strconv.Itoa(len(head)))
		return answer.StatusCode, string(text)
	}
	for _, raw := range []string{"", "text", "\xff\xfe", "a\x00b", "\xed\xa0\x80"} {
		code, text := send("blob", []byte(raw))
		require.Equal(t, http.StatusOK, code, "%q: %s", raw, text)
		require.True(t, bytes.HasSuffix([]byte(text), append(binary.LittleEndian.AppendUint32(nil, uint32(len(raw))), raw...)), "%q: %q", raw, text)
	}
	code, text := send("tags", []byte("\xff"))
	require.Equal(t, http.StatusBadRequest, code, text)
	for token, want := range map[string]string{
		`"a\ud83d\ude00b"`: "a😀b", `"\ufffd"`: "\ufffd", `"\\ud800"`: `\ud800`, `"\ud800"`: "", `"\ud800\u0041"`: "", `"\udc00"`: "", `"\ud83d\\ude00"`: "", "\"\xff\"": "",
	} {
		code, text := infer(t, gw, "mixed", `{"inputs":[{"name":"label","datatype":"BYTES","shape":[1],"data":[`+token+`]}],"outputs":[{"name":"label"}]}`)
		if want == "" {
			require.Equal(t, http.StatusBadRequest, code, "%q: %s", token, text)
			continue
		}
		require.Equal(t, http.StatusOK, code, "%q: %s", token, text)
		quoted, err := json.Marshal(want)
		require.NoError(t, err)
		require.Contains(t, text, `"data":[`+string(quoted)+`]`)
	}
	code, text = infer(t, gw, "mixed", `{"inputs":[{"name":"label","datatype":"BYTES","shape":[1],"data":["l"]}],"parameters":{"blob":"text"},"outputs":[{"name":"blob"}]}`)
	require.Equal(t, http.StatusOK, code, text)
	require.Contains(t, text, `"data":["text"]`)
}
