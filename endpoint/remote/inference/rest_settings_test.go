package inference_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/nonfinite"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// ask sends a request and returns the status and JSON of the response.
func ask(t *testing.T, gw *remotetest.Gateway, method, path, body string) (int, map[string]any) {
	t.Helper()
	r, err := http.NewRequest(method, gw.HTTP()+path, strings.NewReader(body))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	var answer map[string]any
	text, _ = nonfinite.Replace(text, strconv.Quote) // Go's decoder refuses them
	require.NoError(t, json.Unmarshal(text, &answer), "%s", text)
	return resp.StatusCode, answer
}

// Requests for trace and log settings return JSON, and changes of settings are refused.
func TestSettingsAreAnswered(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := serve(t, owner)
	for _, path := range []string{"/v2/trace/setting", "/v2/models/identity/trace/setting"} {
		code, answer := ask(t, gw, http.MethodGet, path, "")
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, []any{"OFF"}, answer["trace_level"])
		code, answer = ask(t, gw, http.MethodPost, path, `{"trace_level":["TIMESTAMPS"]}`)
		require.Equal(t, http.StatusNotImplemented, code)
		require.Contains(t, answer["error"], "trace_level")
	}
	code, answer := ask(t, gw, http.MethodGet, "/v2/logging", "")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, true, answer["log_info"])
	require.InDelta(t, 0, answer["log_verbose_level"], 0)
	code, _ = ask(t, gw, http.MethodPost, "/v2/logging", "{}")
	require.Equal(t, http.StatusOK, code)
	code, answer = ask(t, gw, http.MethodPost, "/v2/logging", `{"log_verbose_level":1}`)
	require.Equal(t, http.StatusNotImplemented, code)
	require.Contains(t, answer["error"], "--log-level")
	for _, path := range []string{"/v2/models/nope/trace/setting", "/v2/nothing"} {
		code, answer = ask(t, gw, http.MethodGet, path, "")
		require.Equal(t, http.StatusNotFound, code)
		require.NotEmpty(t, answer["error"])
	}
}

// A request with a sequence is refused over both transports. The sequence 0 means none.
func TestSequencesAreRefused(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := serve(t, owner)
	const path, input = "/v2/models/identity/infer", `"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]`
	for id, want := range map[string]int{"0": http.StatusOK, `""`: http.StatusOK, "7": http.StatusNotImplemented, `"a"`: http.StatusNotImplemented} {
		code, answer := ask(t, gw, http.MethodPost, path, `{"parameters":{"sequence_id":`+id+`,"sequence_start":true},`+input+`}`)
		require.Equal(t, want, code, "%s: %v", id, answer)
		if want != http.StatusOK {
			require.Contains(t, answer["error"], "sequence_id")
		}
	}
	client := dial(t, gw)
	r := identity(4)
	r.Parameters = map[string]*pb.InferParameter{"sequence_id": integer(0)}
	_, err := client.ModelInfer(t.Context(), r)
	require.NoError(t, err)
	r.Parameters["sequence_id"] = integer(7)
	_, err = client.ModelInfer(t.Context(), r)
	require.Equal(t, codes.Unimplemented, status.Code(err), "%v", err)
}

// NaN and infinite elements are accepted in the form that Triton's clients write, and sent as texts.
func TestJSONCarriesNumbersThatAreNotFinite(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := serve(t, owner)
	for _, data := range []string{`[NaN,-Infinity,Infinity,1.5]`, `["NaN","-Infinity",["Infinity",1.5]]`} {
		code, answer := ask(t, gw, http.MethodPost, "/v2/models/identity/infer",
			`{"id":"NaN","inputs":[{"name":"x","datatype":"FP32","shape":[4],"data":`+data+`}],"parameters":{"binary_data_output":false}}`)
		require.Equal(t, http.StatusOK, code, "%v", answer)
		require.Equal(t, "NaN", answer["id"])
		output := answer["outputs"].([]any)[0].(map[string]any) //nolint:forcetypeassert // fails the test
		require.Equal(t, []any{"NaN", "-Infinity", "Infinity", 1.5}, output["data"])
		response, err := http.Post(gw.HTTP()+"/v2/models/identity/infer", "application/json", strings.NewReader(
			`{"inputs":[{"name":"x","datatype":"FP32","shape":[4],"data":`+data+`}],"parameters":{"binary_data_output":false}}`))
		require.NoError(t, err)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Contains(t, string(text), `[NaN,-Infinity,Infinity,1.5]`, "bare words, as Triton writes them")
	}
	for _, bad := range []string{`["1"]`, `["nan"]`, `[inf]`, `["NaN]`} {
		code, _ := ask(t, gw, http.MethodPost, "/v2/models/identity/infer", `{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":`+bad+`}]}`)
		require.Equal(t, http.StatusBadRequest, code, bad)
	}
	code, _ := ask(t, gw, http.MethodPost, "/v2/models/identity/infer", `{"inputs":[{"name":"x","datatype":"INT32","shape":[1],"data":["NaN"]}]}`)
	require.Equal(t, http.StatusBadRequest, code)
}
