package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/metrics"
)

// Every metric in the alert rules and the dashboard is one that an owner has, with the labels that they select.
func TestMetricsExist(t *testing.T) {
	t.Parallel()
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "f", func(context.Context, struct{}) (int, error) { return 1, nil }))
	s, err := endpoint.NewServer(endpoint.ServerOptions{Local: true, Registry: r})
	require.NoError(t, err)
	defer s.Close()
	info, err := s.ServerInfo(context.Background())
	require.NoError(t, err)
	var text strings.Builder
	require.NoError(t, metrics.Write(&text, info))
	known := map[string]bool{"sharedtensor_up": true} // of the command metrics
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)`).FindAllStringSubmatch(text.String(), -1) {
		if m[2] != "histogram" {
			known[m[1]] = true
			continue
		}
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			known[m[1]+part] = true
		}
	}
	labels := map[string]bool{"instance": true} // of Prometheus
	for _, m := range regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(text.String(), -1) {
		labels[m[1]] = true
	}
	for _, use := range []string{"device", "use"} { // of memory, which this server has not
		labels[use] = true
	}
	for _, file := range []string{"monitoring/alerts.yaml", "monitoring/alerts_test.yaml", "monitoring/dashboard.json"} {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		names := regexp.MustCompile(`\bsharedtensor_[a-z_]+`).FindAllString(string(content), -1)
		require.NotEmpty(t, names, file)
		for _, name := range names {
			require.True(t, known[name], "%s: an owner has no metric %s", file, name)
		}
		for _, by := range regexp.MustCompile(`(?:by|on) \(([a-z, ]+)\)`).FindAllStringSubmatch(string(content), -1) {
			for label := range strings.SplitSeq(by[1], ", ") {
				require.True(t, labels[label], "%s: no metric has the label %s", file, label)
			}
		}
	}
}

// The dashboard is complete: each panel has a title, a query and a separate place.
func TestDashboard(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("monitoring/dashboard.json")
	require.NoError(t, err)
	var board struct {
		Panels []struct {
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(content, &board))
	taken := map[[2]int]string{}
	for _, p := range board.Panels {
		require.NotEmpty(t, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, q := range p.Targets {
			require.Contains(t, q.Expr, "sharedtensor_", p.Title)
		}
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.Empty(t, taken[at], "%s covers another panel", p.Title)
				taken[at] = p.Title
			}
		}
	}
}

// The command accepts the policy of the example, and of the manifests.
func TestPolicies(t *testing.T) {
	t.Parallel()
	var files []string
	for _, name := range []string{"kubernetes/owner.yaml", "kubernetes/gpu/pods.yaml"} {
		manifest, err := os.ReadFile(name)
		require.NoError(t, err)
		_, text, found := strings.Cut(string(manifest), "policy.yaml: |\n")
		require.True(t, found)
		text, _, _ = strings.Cut(text, "---")
		files = append(files, filepath.Join(t.TempDir(), "policy.yaml"))
		require.NoError(t, os.WriteFile(files[len(files)-1], []byte(text), 0o600))
	}
	example, err := os.ReadFile("policy.yaml")
	require.NoError(t, err)
	copied := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(copied, example, 0o600))
	program := filepath.Join(t.TempDir(), "sharedtensor")
	out, err := exec.Command("go", "build", "-o", program, "../../cmd/sharedtensor").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, file := range append(files, copied) {
		out, err := exec.Command(program, "config", "check", file).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "is valid")
	}
}

// Each image is built with the Go version that its module needs.
func TestGoVersions(t *testing.T) {
	t.Parallel()
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`)
	for file, module := range map[string]string{"container/Dockerfile": "../../go.mod", "container/Dockerfile.gpu": "../../go.mod", "container/Dockerfile.gateway": "../../endpoint/remote/go.mod"} {
		needed, err := os.ReadFile(module)
		require.NoError(t, err)
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotNil(t, version.FindSubmatch(needed), module)
		require.Contains(t, string(content), "/golang:"+string(version.FindSubmatch(needed)[1])+" AS build", "%s builds %s", file, module)
	}
}

// systemd accepts the units.
func TestUnits(t *testing.T) {
	t.Parallel()
	_, err := exec.LookPath("systemd-analyze")
	drivertest.Needs(t, "systemd-analyze", err == nil, "systemd is not installed")
	dir := t.TempDir()
	units, err := filepath.Glob("systemd/sharedtensor*")
	require.NoError(t, err)
	require.Len(t, units, 4)
	args := []string{"verify"}
	for _, unit := range units {
		content, err := os.ReadFile(unit)
		require.NoError(t, err)
		content = regexp.MustCompile(`/usr/local/bin/sharedtensor(-gateway)?`).ReplaceAll(content, []byte("/bin/true")) // the program has to exist
		file := filepath.Join(dir, filepath.Base(unit))
		require.NoError(t, os.WriteFile(file, content, 0o600))
		args = append(args, file)
	}
	out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "Unknown", "a misspelled key is only a warning")
}

// An owner and a reader in separate user, pid, ipc, mount, network and uts namespaces share a model in place, through the
// directory of the socket alone.
func TestTwoContainers(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"unshare", "setpriv", "bash"} {
		_, err := exec.LookPath(program)
		drivertest.Needs(t, program, err == nil, program+" is not installed")
	}
	err := exec.Command("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--ipc", "--net", "--uts", "--cgroup", "true").Run()
	drivertest.Needs(t, "namespaces", err == nil, "this system permits no new namespaces")
	c := exec.Command("./two-containers", "namespaces")
	c.Env = append(os.Environ(), fmt.Sprint("BYTES=", 4<<20))
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "namespaces: 4 MiB in place across containers")
	require.Contains(t, string(out), `"pid":1,`, "the reader is the first process of its namespace")
}
