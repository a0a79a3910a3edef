package gateway_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// openMetricsSuffixes are the suffixes that OpenMetrics adds to a family's name for its samples.
var openMetricsSuffixes = []string{"_total", "_created", "_count", "_sum", "_bucket", "_info", "_gcount", "_gsum"}

// In OpenMetrics, sample names do not collide with the names of other families, and families are unique.
func TestOpenMetricsNamesAreDistinct(t *testing.T) {
	owner := remotetest.StartOwner(t, "--model", "m=4096")
	gw := remotetest.StartGateway(t, owner.Socket)
	ready(t, gw, http.StatusOK)
	status, body, header := get(t, http.DefaultClient, gw.HTTP()+"/metrics", "Accept", "application/openmetrics-text; version=1.0.0")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, header.Get("Content-Type"), "application/openmetrics-text")
	require.True(t, strings.HasSuffix(body, "# EOF\n"))
	kinds, samples := map[string]string{}, map[string]string{}
	family := ""
	for line := range strings.Lines(body) {
		words := strings.Fields(line)
		if words[0] == "#" && words[1] == "TYPE" {
			family = words[2]
			require.NotContains(t, kinds, family, "a family comes twice")
			kinds[family] = words[3]
		}
		if words[0] != "#" {
			name, _, _ := strings.Cut(words[0], "{")
			require.True(t, strings.HasPrefix(name, family), "%s is not of family %s", name, family)
			if kinds[family] == "counter" {
				require.Contains(t, []string{family + "_total", family + "_created"}, name)
			}
			samples[name] = family
		}
	}
	require.Equal(t, "gauge", kinds["sharedtensor_gateway_owner_attached"])
	require.Contains(t, body, "sharedtensor_models")
	_, text, _ := get(t, http.DefaultClient, gw.HTTP()+"/metrics")
	require.Contains(t, text, "\ngo_memstats_alloc_bytes ", "the text format has all families")
	require.Contains(t, text, "\ngo_memstats_alloc_bytes_total ")
	for name := range kinds {
		for _, suffix := range openMetricsSuffixes {
			other, has := strings.CutSuffix(name, suffix)
			require.False(t, has && kinds[other] != "", "family %s has the name of a sample of family %s", name, other)
		}
	}
}
