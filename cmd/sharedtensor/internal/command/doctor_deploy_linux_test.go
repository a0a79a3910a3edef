package command

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestDoctorUserNamespace(t *testing.T) {
	t.Parallel()
	at := func(file, content string) fs.FS { return fstest.MapFS{file: {Data: []byte(content)}} }
	for _, c := range []struct {
		mapping string
		euid    int
		status  status
		text    string
	}{
		{"         0          0 4294967295\n", 65534, statusOK, "not in a user namespace"},
		{"0 0 65536\n65536 65536 4294901759\n", 65534, statusOK, "not in a user namespace"},
		{"         0     100000      65536\n", 0, statusWarn, "uid 0 here is 100000 outside"},
		{"         0          0      65536\n", 0, statusWarn, "in a user namespace"},
		{"         0     100000      65536\n", 65534, statusFail, "every unmapped user appears as 65534"},
		{"", 65534, statusFail, "without a mapping"},
		{"nonsense", 0, statusWarn, "unknown"},
	} {
		f := userFinding(at("proc/self/uid_map", c.mapping), c.euid, 0)
		require.Equal(t, c.status, f.Status, c.mapping)
		require.Contains(t, f.Detail, c.text, c.mapping)
	}
	require.Equal(t, statusWarn, userFinding(fstest.MapFS{}, 0, 0).Status, "no /proc")
	require.Equal(t, statusOK, userFinding(at("proc/self/status", ""), 0, 0).Status, "a kernel without user namespaces")

	require.Contains(t, pidFinding(at("proc/self/status", "Name:\tx\nNSpid:\t4711\t1\n")).Detail, "nested")
	require.Contains(t, pidFinding(at("proc/self/status", "Name:\tx\nNSpid:\t4711\n")).Detail, "visible")
	require.Equal(t, statusWarn, pidFinding(fstest.MapFS{}).Status)
}

// doctor reports who reaches the socket, and whether models survive the end of the owner.
func TestDoctorDeployment(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	require.Contains(t, survivesFinding(p.socket()).Detail, "with serve --keep")
	p.serve("m=" + path)
	require.Equal(t, statusWarn, survivesFinding(p.socket()).Status)
	require.Contains(t, admitsFinding(p.socket()).Detail, "uid ")
	require.NoError(t, os.Chmod(p.socket(), 0o666))
	require.Equal(t, statusWarn, admitsFinding(p.socket()).Status, "the directory keeps the others out")
	require.NoError(t, os.Chmod(filepath.Dir(p.socket()), 0o711))
	require.Contains(t, admitsFinding(p.socket()).Detail, "everyone reaches it")
	text := p.must("doctor")
	for _, check := range []string{"user ", "pid namespace", "clients of an owner", "users of the socket", "after the owner's end"} {
		require.Contains(t, text, check)
	}
}
