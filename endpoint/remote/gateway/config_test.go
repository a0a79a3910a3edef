package gateway_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
)

// settle applies a command line, an environment and a file in the same steps as the program.
func settle(t *testing.T, args []string, environ map[string]string, file string) (gateway.Config, map[string]gateway.Setting, error) {
	t.Helper()
	config := gateway.DefaultConfig()
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	config.Flags(set)
	require.NoError(t, set.Parse(args))
	path := ""
	if file != "" {
		path = filepath.Join(t.TempDir(), "gateway.yaml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	}
	all, err := gateway.ApplySettings(set, func(name string) (string, bool) { v, ok := environ[name]; return v, ok }, path)
	byName := map[string]gateway.Setting{}
	for _, s := range all {
		byName[s.Name] = s
	}
	return config, byName, err
}

// Every setting has the same effect as a flag, an environment variable and a key in the file.
func TestSettingsAgree(t *testing.T) {
	values := map[string]string{
		"owner": "/run/owner.sock", "http": "127.0.0.1:1", "grpc": "off", "nats": "nats://a:4222,nats://b:4222", "nats-listen": "127.0.0.1:2", "nats-leaf": "nats-leaf://a:7422", "nats-domain": "hub",
		"nats-credentials": "/etc/creds", "nats-ca": "nats-ca.pem", "nats-cert": "nats.pem", "nats-key": "nats-key.pem", "debug": "127.0.0.1:3", "admin": "127.0.0.1:4", "proxy-protocol": "a,b", "forwarded-for": "10.0.0.0/8", "store": "/var/lib/gw", "tls-cert": "c.pem", "tls-key": "k.pem", "client-ca": "ca.pem",
		"token-file": "tokens", "policy": "policy.yaml", "audit": "audit.jsonl", "require-audit": "true", "access-log": "access.jsonl", "allow-hosts": "a.test,b.test", "insecure": "true", "read-only": "true", "max-connections": "77",
		"max-request": "3MiB", "max-in-flight": "5MiB", "max-store": "7GiB", "nats-sync": "always", "min-rate": "2KiB", "stall": "7s", "lame-duck": "3s", "drain": "1m0s", "log-level": "debug", "log-format": "json",
	}
	var args, file []string
	environ := map[string]string{}
	for name, v := range values {
		args = append(args, "--"+name+"="+v)
		environ[gateway.EnvName(name)] = v
		switch name {
		case "allow-hosts":
			v = "[a.test, b.test]"
		case "proxy-protocol":
			v = "[a, b]"
		}
		file = append(file, name+": "+v)
	}
	byFlag, settings, err := settle(t, args, nil, "")
	require.NoError(t, err)
	require.Len(t, values, len(settings), "a setting is not in this test")
	byEnvironment, _, err := settle(t, nil, environ, "")
	require.NoError(t, err)
	byFile, origins, err := settle(t, nil, nil, strings.Join(file, "\n"))
	require.NoError(t, err)
	require.Equal(t, byFlag, byEnvironment)
	require.Equal(t, byFlag, byFile)
	for name, v := range values {
		require.Equal(t, gateway.Setting{Name: name, Value: v, Origin: "file"}, origins[name])
	}
}

func TestSettingsPrecedence(t *testing.T) {
	config, all, err := settle(t, []string{"--stall=1s"}, map[string]string{"SHAREDTENSOR_STALL": "2s", "SHAREDTENSOR_DRAIN": "3s", "SHAREDTENSOR_STORE": ""},
		"stall: 4s\ndrain: 5s\nmax-request: 6KiB\n")
	require.NoError(t, err)
	require.Equal(t, "1s", config.Stall.String())
	require.Equal(t, "3s", config.Drain.String())
	require.Equal(t, gateway.ByteSize(6<<10), config.MaxRequest)
	require.Equal(t, "flag", all["stall"].Origin)
	require.Equal(t, "environment", all["drain"].Origin)
	require.Equal(t, "file", all["max-request"].Origin)
	require.Equal(t, "default", all["store"].Origin, "a variable that is empty says nothing")
}

func TestSettingsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		environ map[string]string
		file    string
		says    string
	}{
		"misspelt":      {nil, "max_request: 1MiB", `:1: unknown setting "max_request"; did you mean "max-request"?`},
		"unknown":       {nil, "a: 1\nzzzzzzzzzz: 2", `:2: unknown setting "zzzzzzzzzz"`},
		"config in it":  {nil, "config: other.yaml", "unknown setting"},
		"wrong type":    {nil, "insecure: maybe", ":1: insecure:"},
		"list for one":  {nil, "http: [a, b]", "takes one value"},
		"nested":        {nil, "http:\n  port: 1", ":2: http: takes a value"},
		"twice":         {nil, "drain: 1s\ndrain: 2s", ":2: drain is set twice"},
		"no mapping":    {nil, "- a", "mapping"},
		"two documents": {nil, "drain: 1s\n---\ndrain: 2s", "more than one document"},
		"no YAML":       {nil, "a: [", "gateway.yaml"},
		"environment":   {map[string]string{"SHAREDTENSOR_STALL": "soon"}, "", "SHAREDTENSOR_STALL"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := settle(t, nil, c.environ, c.file)
			require.ErrorContains(t, err, c.says)
		})
	}
	t.Run("all at once", func(t *testing.T) {
		config := gateway.DefaultConfig()
		config.HTTP, config.GRPC, config.Stall, config.LogLevel = "nowhere", "unix:", 0, "loud"
		err := config.Check()
		for _, flag := range []string{"--http", "--grpc", "--stall", "--log-level"} {
			require.ErrorContains(t, err, flag)
		}
	})
}

func TestRankMovesPorts(t *testing.T) {
	t.Setenv("RANK", "3")
	config := gateway.DefaultConfig()
	require.Equal(t, "127.0.0.1:2540", config.HTTP)
	require.Equal(t, "127.0.0.1:50054", config.GRPC)
	require.Equal(t, "127.0.0.1:4225", config.NATSListen)
	require.True(t, strings.HasSuffix(config.Store, "-3"), config.Store)
	t.Setenv("RANK", "-1")
	require.Equal(t, "127.0.0.1:2537", gateway.DefaultConfig().HTTP)
}

func TestByteSize(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "4096": 4096, "64MiB": 64 << 20, "1 GB": 1e9, "2kB": 2000, "7B": 7, "8TiB": 8 << 40} {
		var b gateway.ByteSize
		require.NoError(t, b.Set(text), text)
		require.Equal(t, gateway.ByteSize(want), b)
		var again gateway.ByteSize
		require.NoError(t, again.Set(b.String()))
		require.Equal(t, b, again)
	}
	for _, text := range []string{"", "-1", "1.5GiB", "MiB", "9999999TiB", "1 elephant"} {
		require.Error(t, new(gateway.ByteSize).Set(text), text)
	}
}
