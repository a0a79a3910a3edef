package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// deployFolder has the deployment of owners and gateways.
const deployFolder = "../../../../examples/deploy"

// Every metric in the gateway's alert rules and dashboard is one that a gateway has.
func TestDeployedMetricsExist(t *testing.T) {
	t.Parallel()
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, append(withTokens(t), "--nats", "embedded", "--nats-listen", "127.0.0.1:0")...)
	requireReady(t, gw)
	body := `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}`
	for _, token := range []string{fullToken, readOnlyToken} {
		for path, content := range map[string]string{"/v2/models/rows/infer": body, "/v2/repository/models/rows/load": "{}"} { // a read-only token may not load
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gw.HTTP()+path, strings.NewReader(content))
			require.NoError(t, err)
			r.Header.Set("Authorization", "Bearer "+token)
			response, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
		}
	}
	require.NoError(t, makeBins(t, gw))
	_, text := gw.Get(t, "/metrics", "Authorization", "Bearer "+fullToken)
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)`).FindAllStringSubmatch(string(text), -1) {
		known[m[1]] = true
		if m[2] == "histogram" {
			known[m[1]+"_bucket"] = true
		}
	}
	for _, file := range []string{"gateway-alerts.yaml", "gateway-alerts_test.yaml", "gateway-dashboard.json"} {
		content, err := os.ReadFile(filepath.Join(deployFolder, "monitoring", file))
		require.NoError(t, err)
		names := regexp.MustCompile(`\bsharedtensor_[a-z_]+`).FindAllString(string(content), -1)
		require.NotEmpty(t, names, file)
		for _, name := range names {
			require.True(t, known[name], "%s: a gateway has no metric %s", file, name)
		}
		if strings.HasSuffix(file, ".json") {
			require.True(t, json.Valid(content), file)
		}
	}
}

// The manifest of the gateway uses flags that exist, and its policy is valid.
func TestDeployedGatewayIsValid(t *testing.T) {
	t.Parallel()
	f, err := os.Open(filepath.Join(deployFolder, "kubernetes", "gateway.yaml"))
	require.NoError(t, err)
	defer f.Close()
	type document struct {
		Kind string            `yaml:"kind"`
		Data map[string]string `yaml:"data"`
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Args []string `yaml:"args"`
					} `yaml:"containers"`
				} `yaml:"spec"`
			} `yaml:"template"`
		} `yaml:"spec"`
	}
	seen := map[string]bool{}
	for d := yaml.NewDecoder(f); ; {
		var doc document
		if err := d.Decode(&doc); err != nil {
			break
		}
		seen[doc.Kind] = true
		switch doc.Kind {
		case "ConfigMap":
			flags, _, _ := withPolicy(t, doc.Data["policy.yaml"], "trainer", "service", "prometheus")
			config := gateway.DefaultConfig()
			config.TokenFile, config.Policy, config.Store = flags[1], flags[3], t.TempDir()
			require.NoError(t, config.Check())
		case "DaemonSet":
			args := doc.Spec.Template.Spec.Containers[0].Args
			require.Equal(t, "serve", args[0])
			require.NoError(t, newServeCommand().ParseFlags(args[1:]))
		}
	}
	require.Equal(t, "map[ConfigMap:true DaemonSet:true NetworkPolicy:true Service:true]", fmt.Sprint(seen))
}

// makeBins creates a namespace of bins at a gateway without TLS.
func makeBins(t *testing.T, gw *remotetest.Gateway) error {
	t.Helper()
	conn, err := natslink.Connect(gw.Addresses.NATS, nats.Token(fullToken))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = bins.Open(t.Context(), conn, bins.Options{Namespace: "deployed"})
	return err
}
