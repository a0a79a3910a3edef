package deploy_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/module"
)

// node is a host with pods: processes in new PID, IPC, network, mount, UTS and control group namespaces, as an unprivileged
// user without capabilities, on a read-only root. The stand-in for libcuda replaces the GPU.
type node struct {
	t     *testing.T
	files string // mounted read-only at /run/pod
	env   []string
}

// inPod prepares the mounts of a pod and starts its program: the directory of the claim, the files, user and group.
const inPod = `set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/nvidia-dra/local-ipc /run/pod
mount --bind "$1" /run/nvidia-dra/local-ipc
mount --bind "$2" /run/pod
mount -o remount,ro,bind /run/pod
mount -t tmpfs -o ro tmpfs /tmp
mount -t tmpfs -o ro tmpfs /var/tmp
mount -o remount,ro /run
mount -o remount,ro,bind /
user=$3 group=$4
shift 4
export NVIDIA_DRA_LOCAL_IPC_DIR=/run/nvidia-dra/local-ipc SHAREDTENSOR_LIBCUDA=/run/pod/libcuda.so.1
unset SHARED_TENSOR_BASE_PATH XDG_RUNTIME_DIR
exec setpriv --reuid="$user" --regid="$group" --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all -- "$@"`

func newNode(t *testing.T) *node {
	t.Helper()
	for _, program := range []string{"unshare", "setpriv"} {
		_, err := exec.LookPath(program)
		drivertest.Needs(t, program, err == nil, program+" is not installed")
	}
	drivertest.Needs(t, "root", os.Getuid() == 0, "only root can make the user and the mounts of a pod")
	err := exec.Command("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--ipc", "--net", "--uts", "--cgroup", "true").Run()
	drivertest.Needs(t, "namespaces", err == nil, "this system permits no new namespaces")
	n := &node{t: t, files: openDir(t), env: append(os.Environ(), cudatest.Options{}.Env(t)...)}
	library, err := os.ReadFile(cudatest.Build(t))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(n.files, "libcuda.so.1"), library, 0o755))
	out, err := exec.Command("go", "build", "-o", filepath.Join(n.files, "sharedtensor"), "../../cmd/sharedtensor").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, module.SynthesizeFile(filepath.Join(n.files, "llm.safetensors"), module.Synthetic{Tensors: 4, Bytes: 4 << 20, Seed: 1}))
	require.NoError(t, os.Chmod(filepath.Join(n.files, "llm.safetensors"), 0o644))
	manifest := n.manifest()
	_, policy, found := strings.Cut(manifest, "policy.yaml: |\n")
	require.True(t, found)
	policy, _, _ = strings.Cut(policy, "---")
	require.NoError(t, os.WriteFile(filepath.Join(n.files, "policy.yaml"), []byte(policy), 0o644))
	return n
}

// openDir returns a new directory that all users can enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "st")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// claim returns the directory of a new claim, with the mode that the driver sets.
func (n *node) claim() string {
	n.t.Helper()
	dir := openDir(n.t)
	require.NoError(n.t, syscall.Chmod(dir, 0o1777))
	return dir
}

func (n *node) manifest() string {
	n.t.Helper()
	text, err := os.ReadFile("kubernetes/gpu/pods.yaml")
	require.NoError(n.t, err)
	return string(text)
}

// ownerArgs returns the arguments of the owner in the manifest, with the paths of the pods here.
func (n *node) ownerArgs() []string {
	n.t.Helper()
	m := regexp.MustCompile(`(?m)^ +args: \[(serve, .*)\]$`).FindStringSubmatch(n.manifest())
	require.NotNil(n.t, m)
	return strings.Split(strings.NewReplacer("/etc/sharedtensor/", "/run/pod/", "/models/", "/run/pod/").Replace(m[1]), ", ")
}

// pod returns a command that runs a program in a pod of a claim.
func (n *node) pod(claim string, user, group int, words ...string) *exec.Cmd {
	args := []string{
		"--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--net", "--uts", "--cgroup", "--",
		"sh", "-c", inPod, "sh", claim, n.files, fmt.Sprint(user), fmt.Sprint(group),
	}
	cmd := exec.Command("unshare", append(args, words...)...)
	cmd.Env = n.env
	return cmd
}

// start starts a pod that runs until the returned function kills it. output returns its log.
func (n *node) start(cmd *exec.Cmd) (kill func(), output func() string) {
	n.t.Helper()
	log, err := os.CreateTemp(n.t.TempDir(), "log")
	require.NoError(n.t, err)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(n.t, cmd.Start())
	output = func() string {
		text, err := os.ReadFile(log.Name())
		require.NoError(n.t, err)
		return string(text)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // the kernel ends all processes of the pod
		_ = cmd.Wait()         // it was killed
		if n.t.Failed() {
			n.t.Log(output())
		}
		log.Close()
	})
	n.t.Cleanup(kill)
	return kill, output
}

// Pods of one GPU claim share the memory of its owner through the directory of the claim alone. The arguments and the policy are
// taken from the manifest. Other claims and other users are separate.
func TestPodsOfAClaim(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	claim := n.claim()
	command := "/run/pod/sharedtensor"
	const user, engines = 65532, 2000
	owner := append([]string{command}, n.ownerArgs()...)
	kill, said := n.start(n.pod(claim, user, user, owner...))
	socket := filepath.Join(claim, fmt.Sprintf("shared-tensor-%d", user), "shared-tensor-0.sock")
	serves := func() {
		t.Helper()
		require.Eventually(t, func() bool {
			return n.pod(claim, user, user, command, "inspect", "llm", "--timeout=2s").Run() == nil
		}, 30*time.Second, 50*time.Millisecond, said())
	}
	serves()
	info, err := os.Lstat(filepath.Dir(socket))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	get := func() []byte {
		t.Helper()
		var text bytes.Buffer
		engine := n.pod(claim, user, engines, command, "get", "llm", "-o", "-")
		engine.Stderr = &text
		got, err := engine.Output()
		require.NoError(t, err, text.String())
		return got
	}
	want, err := os.ReadFile(filepath.Join(n.files, "llm.safetensors"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, get()), "an engine reads other bytes")

	// A pod has no rights beyond those.
	script := `for f in / /tmp /var/tmp /run /run/pod; do ! touch $f/written 2>/dev/null || { echo "$f is writable"; exit 1; }; done
		grep -E '^(CapEff|CapPrm|CapBnd|CapInh|NoNewPrivs)' /proc/self/status; ls /proc | grep -c '^[0-9]'`
	out, err := n.pod(claim, user, engines, "sh", "-c", script).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `CapInh:\s0+\nCapPrm:\s0+\nCapEff:\s0+\nCapBnd:\s0+\nNoNewPrivs:\s1\n[1-9]\n$`, string(out))

	for _, c := range []struct {
		name        string
		claim       string
		user, group int
		words       []string
		says        string
	}{
		{"another claim", n.claim(), user, engines, []string{"get", "llm", "-o", "-"}, "there is no such socket"},
		{"another user", claim, user + 1, engines, []string{"get", "llm", "-o", "-"}, "there is no such socket"},
		{"another user with the path", claim, user + 1, engines, []string{"get", "llm", "-o", "-", "--socket", "/run/nvidia-dra/local-ipc/shared-tensor-65532/shared-tensor-0.sock"}, "permission"},
		{"a second owner", claim, user, user, owner[1:], "another owner is serving"},
		{"an engine that publishes", claim, user, engines, []string{"publish", "llm=/run/pod/llm.safetensors"}, "does not let uid 65532 publish"},
	} {
		out, err := n.pod(c.claim, c.user, c.group, append([]string{command}, c.words...)...).CombinedOutput()
		require.Error(t, err, "%s", c.name)
		require.Contains(t, string(out), c.says, c.name)
	}

	// A new owner serves the same pods.
	kill()
	_, said = n.start(n.pod(claim, user, user, owner...))
	serves()
	require.True(t, bytes.Equal(want, get()))
}

// The manifest of pods with a GPU requests no rights.
func TestPodsNeedNoRights(t *testing.T) {
	t.Parallel()
	manifest := (&node{t: t}).manifest()
	for _, word := range []string{"hostPath:", "hostIPC: true", "hostPID: true", "hostNetwork", "privileged", "add:", "runAsUser: 0"} {
		require.NotContains(t, regexp.MustCompile(`(?m)#.*$`).ReplaceAllString(manifest, ""), word)
	}
	containers := strings.Count(manifest, "  image: ")
	require.Equal(t, 2, containers)
	for _, word := range []string{"claims: [{ name: gpu }]", "readOnlyRootFilesystem: true", "allowPrivilegeEscalation: false", "capabilities: { drop: [ALL] }", "runAsNonRoot: true"} {
		require.Equal(t, containers, strings.Count(manifest, word), word)
	}
}
