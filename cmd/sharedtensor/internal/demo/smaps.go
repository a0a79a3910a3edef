package demo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// usage is the memory use of a process according to /proc/PID/smaps (proc_pid_smaps(5)).
type usage struct {
	pss     int64    // of the model's mappings: each page divided by the number of processes that map it
	private int64    // of all other mappings: pages that no other process maps
	objects []string // the mapped memory objects as device:inode, sorted
}

// memfdPath begins the path of mappings that package host allocates.
const memfdPath = "/memfd:sharedtensor"

// errSmaps means that the kernel, or an emulation of it, does not report memory shares.
var errSmaps = errors.New("this system does not report the memory shares of processes")

// readUsage returns the usage of a process of this user.
func readUsage(pid int) (usage, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return usage{}, fmt.Errorf("%w: %w", errSmaps, err)
	}
	defer f.Close()
	return parseSmaps(f)
}

// parseSmaps parses smaps: for each mapping, one line as in /proc/PID/maps, followed by lines of the form "Key: value".
func parseSmaps(r io.Reader) (u usage, err error) {
	ours, told := false, false
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20) // a path is at most 4 KiB, or 16 KiB escaped
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			continue
		}
		if !strings.HasSuffix(fields[0], ":") {
			ours = len(fields) >= 6 && strings.HasPrefix(fields[5], memfdPath)
			if ours {
				u.objects = append(u.objects, fields[3]+":"+fields[4])
			}
			continue
		}
		to := &u.private
		switch fields[0] {
		case "Pss:":
			told = true
			if !ours {
				continue
			}
			to = &u.pss
		case "Private_Clean:", "Private_Dirty:":
			if ours {
				continue
			}
		default:
			continue
		}
		n, err := kibibytes(fields)
		if err != nil {
			return usage{}, fmt.Errorf("%w: line %q", errSmaps, lines.Text())
		}
		*to += n
	}
	if err := lines.Err(); err != nil {
		return usage{}, fmt.Errorf("%w: %w", errSmaps, err)
	}
	if !told {
		return usage{}, errSmaps
	}
	slices.Sort(u.objects)
	u.objects = slices.Compact(u.objects)
	return u, nil
}

// kibibytes parses the value of a line such as "Pss: 12 kB" and returns bytes.
func kibibytes(fields []string) (int64, error) {
	if len(fields) != 3 || fields[2] != "kB" {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseInt(fields[1], 10, 43)
	if err != nil || n < 0 {
		return 0, strconv.ErrSyntax
	}
	return n << 10, nil
}
