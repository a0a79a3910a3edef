package inference_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// The gateway has the metrics of Triton beside its own, with their names, labels and counts.
func TestTritonMetrics(t *testing.T) {
	t.Parallel()
	gw := serve(t, remotetest.StartOwner(t))
	client := dial(t, gw)
	for range 3 {
		_, err := client.ModelInfer(t.Context(), rowsRequest("rows", 2, 1, nil))
		require.NoError(t, err)
	}
	bad := rowsRequest("rows", 2, 1, nil)
	bad.RawInputContents[0] = bad.RawInputContents[0][1:]
	_, err := client.ModelInfer(t.Context(), bad)
	require.Error(t, err)
	_, text := gw.Get(t, "/metrics")
	for name, want := range map[string]string{
		"request_success": "3", "request_failure": "1", "count": "6", "exec_count": "3", "pending_request_count": "0",
		"request_duration_us": "[1-9].*", "queue_duration_us": ".+", "compute_input_duration_us": ".+", "compute_infer_duration_us": ".+", "compute_output_duration_us": ".+",
	} {
		line := `(?m)^nv_inference_` + name + `\{model="rows",version="1"\} ` + want + `$`
		require.Regexp(t, regexp.MustCompile(line), string(text), "%s", grep(string(text), "nv_"))
	}
}

// grep returns the lines that begin with a prefix.
func grep(text, prefix string) (lines []string) {
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, line)
		}
	}
	return lines
}
