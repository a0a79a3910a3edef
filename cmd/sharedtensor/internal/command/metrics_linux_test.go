package command

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/endpoint/metrics"
)

// metricLines matches the lines of the text format.
var metricLines = regexp.MustCompile(`^(?:# HELP \w+ .+|# TYPE \w+ (?:counter|gauge|histogram|summary)|(\w+(?:\{(?:\w+="(?:[^"\\]|\\.)*",?)+\})?) (\S+))$`)

// samples parses the text of a scrape. Every line must be valid.
func samples(t *testing.T, text string) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	for line := range strings.Lines(text) {
		m := metricLines.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		require.NotNil(t, m, "%q", line)
		if m[1] == "" {
			continue
		}
		require.NotContains(t, found, m[1])
		v, err := strconv.ParseFloat(m[2], 64)
		require.NoError(t, err)
		found[m[1]] = v
	}
	return found
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	require.Contains(t, p.fails(cli.ExitFailure, "metrics"), "no owner is serving")
	require.Contains(t, p.run("metrics", "--listen", "nonsense").stderr, "use HOST:PORT or :PORT")
	p.service()
	attach(t, p.socket(), "base")
	p.must("call", "transform", "x=@base:layers.0.weight", "scale=2")
	found := samples(t, p.must("metrics"))
	require.EqualValues(t, 1, found["sharedtensor_up"])
	require.EqualValues(t, 1, found["sharedtensor_models"])
	require.EqualValues(t, 1, found["sharedtensor_leases"])
	require.EqualValues(t, 1<<16, found["sharedtensor_memory_mapped_bytes"])
	require.EqualValues(t, 1, found[`sharedtensor_endpoint_calls_total{endpoint="transform"}`])
	require.EqualValues(t, 1, found[`sharedtensor_endpoint_run_duration_seconds_count{endpoint="transform"}`])
}

// fetched sends an HTTP request.
func fetched(t *testing.T, method, url string) (code int, header http.Header, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	got, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	return got.StatusCode, got.Header, string(text)
}

func TestMetricsOverHTTP(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	c := p.start(p.command("metrics", "--listen", ":0", "--timeout", "20s"))
	var url string
	eventually(t, "it listens", func() bool {
		_, url, _ = strings.Cut(strings.TrimSpace(c.stderr.String()), "serving metrics on ")
		return url != ""
	})
	require.True(t, strings.HasPrefix(url, "http://127.0.0.1:"), "on this host only: %s", url)
	code, _, text := fetched(t, http.MethodGet, url)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, map[string]float64{"sharedtensor_up": 0}, samples(t, text), "there is no owner yet")
	eventually(t, "it says so", func() bool { return strings.Contains(c.stderr.String(), "no owner is serving") })

	owner := p.service()
	code, header, text := fetched(t, http.MethodGet, url)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, metrics.ContentType, header.Get("Content-Type"))
	found := samples(t, text)
	require.EqualValues(t, 1, found["sharedtensor_up"])
	require.EqualValues(t, 1, found["sharedtensor_clients"])
	eventually(t, "it says so", func() bool { return strings.Contains(c.stderr.String(), "the owner answers again") })
	code, _, text = fetched(t, http.MethodHead, url)
	require.Equal(t, http.StatusOK, code)
	require.Empty(t, text)
	code, _, _ = fetched(t, http.MethodPost, url)
	require.Equal(t, http.StatusMethodNotAllowed, code)
	code, _, _ = fetched(t, http.MethodGet, strings.TrimSuffix(url, "metrics"))
	require.Equal(t, http.StatusNotFound, code)

	// If the owner hangs, a few scrapes wait and concurrent ones are refused.
	owner.signal(syscall.SIGSTOP)
	eventually(t, "it is stopped", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(owner.cmd.Process.Pid) + "/stat")
		return err == nil && strings.Contains(string(stat), ") T ")
	})
	codes := make(chan int)
	var work sync.WaitGroup
	for range httpScrapes + 2 {
		work.Go(func() {
			r, err := http.Get(url)
			if err == nil {
				r.Body.Close()
				codes <- r.StatusCode
			} else {
				codes <- 0
			}
		})
	}
	require.Equal(t, http.StatusServiceUnavailable, <-codes)
	require.Equal(t, http.StatusServiceUnavailable, <-codes)
	owner.signal(syscall.SIGCONT)
	for range httpScrapes {
		require.Equal(t, http.StatusOK, <-codes)
	}
	work.Wait()

	// An idle connection does not delay the exit.
	idle, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/metrics"))
	require.NoError(t, err)
	defer idle.Close()
	c.signal(syscall.SIGINT)
	require.Equal(t, cli.ExitOK, c.exit(), c.stderr)
	_, err = bufio.NewReader(idle).ReadByte()
	require.Error(t, err)

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	require.Contains(t, p.fails(cli.ExitFailure, "metrics", "--listen", taken.Addr().String()), "address already in use")
}
