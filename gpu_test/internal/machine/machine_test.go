//go:build linux

package machine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// tree writes files below a temporary root.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return root
}

func variables(set map[string]string) func(string) string {
	return func(name string) string { return set[name] }
}

func TestPlainMachine(t *testing.T) {
	t.Parallel()
	m := detect(tree(t, map[string]string{
		"proc/sys/kernel/osrelease":              "6.8.0-generic\n",
		"proc/driver/nvidia/version":             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: gcc 13.3.0\n",
		"proc/driver/nvidia/gpus/0/information":  "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n",
		"proc/self/status":                       "Name:\tx\nCapEff:\t000001ffffffffff\n",
		"proc/self/mountinfo":                    "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
		"proc/sys/user/max_user_namespaces":      "1000\n",
		"proc/devices":                           "Character devices:\n195 nvidia\n",
		"proc/driver/nvidia/capabilities/mig/ok": "",
	}), variables(nil))
	require.Equal(t, Machine{Kernel: "6.8.0-generic", Driver: "580.95.05", GPUs: []string{"NVIDIA H100 80GB HBM3"}, Admin: true, UserNamespaces: true}, m)
	require.Empty(t, m.Limits())
}

func TestContainers(t *testing.T) {
	t.Parallel()
	for kind, c := range map[string]struct{ files, env map[string]string }{
		"docker":       {files: map[string]string{".dockerenv": ""}},
		"podman":       {files: map[string]string{"run/.containerenv": ""}},
		"kubernetes":   {env: map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1"}},
		"lxc":          {files: map[string]string{"proc/1/environ": "A=b\x00container=lxc\x00"}},
		"containerd":   {files: map[string]string{"proc/1/cgroup": "0::/containerd/x\n"}},
		"gvisor":       {files: map[string]string{"proc/version": "Linux version 4.4.0 gVisor"}},
		"overlay root": {files: map[string]string{"proc/self/mountinfo": "1 1 0:30 / / rw,relatime - overlay overlay rw\n"}},
	} {
		m := detect(tree(t, c.files), variables(c.env))
		require.Equal(t, kind, m.Container)
		require.Equal(t, "container ("+kind+")", m.Limits())
	}
}

func TestLimitedMachine(t *testing.T) {
	t.Parallel()
	m := detect(tree(t, map[string]string{
		"proc/sys/kernel/osrelease":                           "5.15.153.1-microsoft-standard-WSL2\n",
		"proc/driver/nvidia/capabilities/gpu0/mig/gi1/access": "",
		"proc/driver/nvidia/capabilities/gpu0/mig/gi2/access": "",
		"proc/devices":                                          "Character devices:\n510 nvidia-caps-imex-channels\n",
		"dev/nvidia-caps-imex-channels/channel0":                "",
		"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n",
	}), variables(nil))
	require.True(t, m.WSL)
	require.Equal(t, 2, m.MIGInstances)
	require.Equal(t, IMEX{Driver: true, Channels: 1, Usable: 1}, m.IMEX)
	require.False(t, m.UserNamespaces)
	require.Equal(t, "WSL, MIG", m.Limits())
	effects := map[string]string{}
	for _, row := range m.Rows() {
		require.NotEmpty(t, row.Value, row.Name)
		effects[row.Name] = row.Effect
	}
	require.NotEmpty(t, effects["WSL"])
	require.NotEmpty(t, effects["MIG"])
	require.NotEmpty(t, effects["namespaces"])
	require.Empty(t, effects["IMEX"], "a channel is usable")
	require.NotEmpty(t, IMEX{Driver: true}.row().Effect)
	require.NotEmpty(t, IMEX{Channels: 1}.row().Effect)
}

func TestThisMachine(t *testing.T) {
	t.Parallel()
	m := Detect()
	require.NotEmpty(t, m.Kernel)
	require.NotZero(t, m.LockedBytes)
}
