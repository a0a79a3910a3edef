package jsonrpc_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

func TestProtocol(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, "--max-request", "1MiB")
	gw.Attached(t)

	t.Run("one request", func(t *testing.T) {
		status, text := post(t, gw, `{"jsonrpc":"2.0","id":"a","method":"call_function","params":{"name":"add","args":[2,3]}}`)
		require.Equal(t, http.StatusOK, status)
		require.JSONEq(t, `{"jsonrpc":"2.0","id":"a","result":5}`, string(text))
	})
	t.Run("notification", func(t *testing.T) {
		status, text := post(t, gw, `{"jsonrpc":"2.0","method":"ping"}`)
		require.Equal(t, http.StatusNoContent, status)
		require.Empty(t, text)
	})
	t.Run("batch", func(t *testing.T) {
		_, text := post(t, gw, `[{"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"add","args":[1,1]}},
			{"jsonrpc":"2.0","method":"ping"}, {"jsonrpc":"2.0","id":2,"method":"nope"}, 3, {"jsonrpc":"2.0","id":4,"method":"ping","params":5}]`)
		var list []rpcAnswer
		require.NoError(t, json.Unmarshal(text, &list), "%s", text)
		require.Len(t, list, 4)
		require.Equal(t, "2", string(list[0].Result))
		require.Equal(t, -32601, list[1].Error.Code)
		require.Equal(t, -32600, list[2].Error.Code)
		require.Equal(t, -32600, list[3].Error.Code)
	})
	t.Run("batch of notifications", func(t *testing.T) {
		status, _ := post(t, gw, `[{"jsonrpc":"2.0","method":"ping"},{"jsonrpc":"2.0","method":"ping"}]`)
		require.Equal(t, http.StatusNoContent, status)
	})
	for name, c := range map[string]struct {
		body string
		code int
	}{
		"no JSON":         {`{"jsonrpc":"2.0","id":1,`, -32700},
		"no request":      {`"ping"`, -32600},
		"empty batch":     {`[]`, -32600},
		"large batch":     {"[" + strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"},`, 1000) + `{"jsonrpc":"2.0","id":1,"method":"ping"}]`, -32600},
		"version 1":       {`{"id":1,"method":"ping"}`, -32600},
		"method":          {`{"jsonrpc":"2.0","id":1,"method":5}`, -32600},
		"no method":       {`{"jsonrpc":"2.0","id":1}`, -32600},
		"unknown method":  {`{"jsonrpc":"2.0","id":1,"method":"os.system"}`, -32601},
		"unknown param":   {`{"jsonrpc":"2.0","id":1,"method":"holders","params":{"nam":"x"}}`, -32602},
		"too many params": {`{"jsonrpc":"2.0","id":1,"method":"holders","params":["x",1,2]}`, -32602},
		"deep nesting":    {`{"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"echo","args":[` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `]}}`, -32602},
	} {
		t.Run(name, func(t *testing.T) {
			_, text := post(t, gw, c.body)
			var a rpcAnswer
			require.NoError(t, json.Unmarshal(text, &a), "%s", text)
			require.NotNil(t, a.Error, "%s", text)
			require.Equal(t, c.code, a.Error.Code, a.Error.Message)
		})
	}
	t.Run("large request", func(t *testing.T) {
		status, text := post(t, gw, `{"jsonrpc":"2.0","id":1,"method":"ping","params":["`+strings.Repeat("x", 2<<20)+`"]}`)
		require.Equal(t, http.StatusRequestEntityTooLarge, status)
		require.Contains(t, string(text), "-32006")
	})
	t.Run("wrong method and type", func(t *testing.T) {
		resp, err := http.Get(gw.HTTP() + "/jsonrpc")
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
		resp, err = http.Post(gw.HTTP()+"/jsonrpc", "text/plain", strings.NewReader("{}"))
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, http.StatusUnsupportedMediaType, resp.StatusCode)
	})
}

func TestCallFunction(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	params := func(text string) json.RawMessage { return json.RawMessage(text) }

	for name, c := range map[string]struct{ params, want string }{
		"by name":                 {`{"name":"add","kwargs":{"a":1,"b":2}}`, "3"},
		"by position":             {`{"name":"add","args":[1,2]}`, "3"},
		"both":                    {`{"name":"add","args":[1],"kwargs":{"b":2}}`, "3"},
		"a field left out":        {`{"name":"add","args":[1]}`, "1"},
		"params by position":      {`["add",[1,2]]`, "3"},
		"one value":               {`{"name":"echo","args":["é\u0000\""]}`, `"é\u0000\""`},
		"stream":                  {`{"name":"count","args":[3]}`, "[0,1,2]"},
		"name of the seed":        {`{"function_path":"add","args":[1,2]}`, "3"},
		"large whole number":      {`{"name":"add","args":[9007199254740993,0]}`, "9007199254740993"},
		"with time to spare":      {`{"name":"sleep","args":[1],"timeout":20}`, "{}"},
		"nothing of a stream":     {`{"name":"count","args":[0]}`, "[]"},
		"null for absent kwargs":  {`{"name":"add","args":[1,2],"kwargs":null}`, "3"},
		"a tensor's values":       {`{"name":"scale","kwargs":{"x":{"$tensor":{"dtype":"float32","values":[[1,2],[3,4]]}},"factor":2}}`, `{"$tensor":{"dtype":"float32","shape":[2,2],"data":"AAAAQAAAgEAAAMBAAAAAQQ=="}}`},
		"a tensor's data":         {`{"name":"scale","kwargs":{"x":{"$tensor":{"dtype":"F32","shape":[1],"data":"AACAPw=="}},"factor":4}}`, `{"$tensor":{"dtype":"float32","shape":[1],"data":"AACAQA=="}}`},
		"a tensor without values": {`{"name":"scale","kwargs":{"x":{"$tensor":{"dtype":"float32","values":[]}}}}`, `{"$tensor":{"dtype":"float32","shape":[0],"data":""}}`},
		"values not finite":       {`{"name":"scale","kwargs":{"x":{"$tensor":{"dtype":"float32","values":[{"$float":"NaN"},{"$float":"-Infinity"}]}},"factor":1}}`, `{"$tensor":{"dtype":"float32","shape":[2],"data":"AADAfwAAgP8="}}`},
		"a scalar":                {`{"name":"scale","kwargs":{"x":{"$tensor":{"dtype":"torch.bfloat16","values":1.5}},"factor":2}}`, `{"$tensor":{"dtype":"float32","shape":[],"data":"AABAQA=="}}`},
	} {
		t.Run(name, func(t *testing.T) {
			a := call(t, gw, "call_function", params(c.params))
			require.Nil(t, a.Error, "%+v", a.Error)
			require.JSONEq(t, c.want, string(a.Result))
		})
	}
	t.Run("NaN as Python writes it", func(t *testing.T) {
		_, text := post(t, gw, `{"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"scale","kwargs":{"x":{"$tensor":{"dtype":"float32","values":[NaN, -Infinity]}},"factor":1}}}`)
		require.Contains(t, string(text), `"AADAfwAAgP8="`)
		_, text = post(t, gw, `{"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"echo","args":["NaN"]}}`)
		require.Contains(t, string(text), `"result":"NaN"`)
	})
	huge := strings.Repeat("9", 30)
	for name, c := range map[string]struct {
		params  string
		code    int
		outcome string
		text    string
	}{
		"no name":            {`{}`, -32602, "", "name"},
		"unknown function":   {`{"name":"nope"}`, -32001, "not_run", "there is add, "},
		"import path":        {`{"name":"os:system","args":["ls"]}`, -32001, "not_run", "import paths are not"},
		"pickle":             {`{"name":"add","args":[1],"encoding":"pickle_hex"}`, -32003, "", "pickle_hex"},
		"missing argument":   {`{"name":"add","kwargs":{"b":1}}`, -32602, "", `needs the argument "a"`},
		"no argument":        {`{"name":"echo"}`, -32602, "", "of type string"},
		"its error":          {`{"name":"fail","args":["no such luck"]}`, -32002, "failed", "no such luck"},
		"too many":           {`{"name":"add","args":[1,2,3]}`, -32602, "", "at most 2"},
		"unknown argument":   {`{"name":"add","kwargs":{"c":1}}`, -32602, "", "takes a, b"},
		"given twice":        {`{"name":"add","args":[1],"kwargs":{"a":1}}`, -32602, "", "by position and by name"},
		"wrong type":         {`{"name":"add","args":["x"]}`, -32003, "failed", "argument"},
		"too long a number":  {`{"name":"add","args":[` + huge + `]}`, -32602, "", "64 bits"},
		"late":               {`{"name":"sleep","args":[60000],"timeout":0.05}`, -32008, "unknown", ""},
		"data too short":     {`{"name":"scale","args":[{"$tensor":{"dtype":"float32","shape":[1000000000,1000],"data":"AAAA"}}]}`, -32602, "", "bytes"},
		"shape overflows":    {`{"name":"scale","args":[{"$tensor":{"dtype":"float32","shape":[4611686018427387904,4],"data":""}}]}`, -32602, "", ""},
		"negative shape":     {`{"name":"scale","args":[{"$tensor":{"dtype":"float32","shape":[-1],"data":""}}]}`, -32602, "", "shape"},
		"no base64":          {`{"name":"scale","args":[{"$tensor":{"dtype":"float32","shape":[1],"data":"!!!!!A=="}}]}`, -32602, "", "base64"},
		"ragged values":      {`{"name":"scale","args":[{"$tensor":{"dtype":"float32","values":[[1],[2,3]]}}]}`, -32602, "", "length"},
		"values out of type": {`{"name":"scale","args":[{"$tensor":{"dtype":"int8","values":[300]}}]}`, -32602, "", "values[0]"},
		"unknown dtype":      {`{"name":"scale","args":[{"$tensor":{"dtype":"float33","values":[1]}}]}`, -32602, "", "float33"},
		"unknown key":        {`{"name":"scale","args":[{"$tensor":{"pickle":"gASV"}}]}`, -32602, "", "pickle"},
		"url not allowed":    {`{"name":"scale","args":[{"$tensor":{"dtype":"float32","shape":[1],"url":"http://169.254.169.254/","sha256":"` + strings.Repeat("0", 64) + `"}}]}`, -32007, "", "--fetch"},
		"no such model":      {`{"name":"scale","args":[{"$tensor":{"model":"nope","name":"x"}}]}`, -32004, "", "nope"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := failed(t, gw, "call_function", params(c.params))
			require.Equal(t, c.code, bad.Code, bad.Message)
			require.Equal(t, c.outcome, bad.outcome())
			require.Contains(t, bad.Message, c.text)
		})
	}
	t.Run("as shared-tensor 0.1 has it", func(t *testing.T) {
		out := result[struct {
			Result        int     `json:"result"`
			FunctionPath  string  `json:"function_path"`
			ExecutionTime float64 `json:"execution_time"`
		}](t, gw, "execute_function", params(`{"function_path":"add","args":[20,22]}`))
		require.Equal(t, 42, out.Result)
		require.Equal(t, "add", out.FunctionPath)
		require.Positive(t, out.ExecutionTime)
	})
	t.Run("functions and how they were called", func(t *testing.T) {
		out := result[struct {
			Functions []struct {
				Name  string `json:"name"`
				Stats struct {
					Calls uint64 `json:"calls"`
				} `json:"stats"`
			} `json:"functions"`
		}](t, gw, "list_functions", nil)
		calls := map[string]uint64{}
		for _, f := range out.Functions {
			calls[f.Name] = f.Stats.Calls
		}
		require.GreaterOrEqual(t, calls["add"], uint64(5))
		require.Contains(t, calls, "work")
	})
}

func TestResultsByURL(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, "--max-request", "64KiB", "--max-results", "1MiB")
	gw.Attached(t)
	bad := failed(t, gw, "call_function", map[string]any{"name": "zeros", "args": []int{100_000}})
	require.Equal(t, -32006, bad.Code)
	require.Contains(t, bad.Message, `"tensors": "url"`)
	type byURL struct {
		Tensor struct {
			DType, URL, SHA256 string
			Shape              []int64
			Bytes              int64
		} `json:"$tensor"`
	}
	one := result[byURL](t, gw, "call_function", map[string]any{"name": "zeros", "args": []int{100_000}, "tensors": "url"})
	require.Equal(t, []int64{100_000}, one.Tensor.Shape)
	resp, body := gw.Get(t, one.Tensor.URL)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Len(t, body, 400_000)
	require.Equal(t, `"sha256-`+one.Tensor.SHA256+`"`, resp.Header.Get("ETag"))
	// As an argument, the gateway's own URL must be allowed like any other.
	full := failed(t, gw, "call_function", map[string]any{"name": "zeros", "args": []int{200_000}, "tensors": "url"})
	require.Equal(t, -32006, full.Code)
	id := strings.TrimPrefix(one.Tensor.URL, "/v1/results/")
	require.Equal(t, map[string]bool{"released": true}, result[map[string]bool](t, gw, "release_result", []string{id}))
	resp, _ = gw.Get(t, one.Tensor.URL)
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
	result[byURL](t, gw, "call_function", map[string]any{"name": "zeros", "args": []int{200_000}, "tensors": "url"})
}

func TestTasks(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	type info struct {
		TaskID string `json:"task_id"`
		Status string `json:"status"`
		Done   int64  `json:"done"`
		Total  int64  `json:"total"`
	}
	submitted := result[info](t, gw, "submit_task", map[string]any{"name": "work", "args": []int{3, 1}})
	end := result[info](t, gw, "wait_task", map[string]any{"task_id": submitted.TaskID})
	require.Equal(t, "completed", end.Status)
	require.Equal(t, 3, result[int](t, gw, "get_task_result", []string{submitted.TaskID}))
	require.Equal(t, "completed", result[info](t, gw, "get_task_status", []string{submitted.TaskID}).Status)

	long := result[info](t, gw, "submit_task", map[string]any{"name": "work", "kwargs": map[string]int{"steps": 1000, "pace_ms": 50}})
	remotetest.Eventually(t, func() error {
		if s := result[info](t, gw, "get_task_status", []string{long.TaskID}); s.Done < 1 {
			return fmt.Errorf("no progress yet: %+v", s)
		}
		return nil
	})
	require.Equal(t, "running", result[info](t, gw, "wait_task", []any{long.TaskID, 0.05}).Status, "a wait that is over is no error")
	require.Equal(t, -32009, failed(t, gw, "get_task_result", []string{long.TaskID}).Code)
	require.JSONEq(t, `{"task_id":"`+long.TaskID+`","cancelled":true}`, string(call(t, gw, "cancel_task", []string{long.TaskID}).Result))
	require.Equal(t, "cancelled", result[info](t, gw, "wait_task", []string{long.TaskID}).Status)
	require.Equal(t, -32009, failed(t, gw, "get_task_result", []string{long.TaskID}).Code)

	list := result[struct{ Tasks []info }](t, gw, "list_tasks", map[string]string{"status": "cancelled"})
	require.Len(t, list.Tasks, 1)
	require.Equal(t, -32602, failed(t, gw, "list_tasks", map[string]string{"status": "lost"}).Code)
	require.Equal(t, -32004, failed(t, gw, "get_task_status", []string{"nope"}).Code)
	require.Equal(t, -32602, failed(t, gw, "cancel_task", nil).Code)
}
