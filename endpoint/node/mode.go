package node

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// Environment variables that [Open] reads, in addition to SHARED_TENSOR_BASE_PATH. [Options] take precedence.
const (
	// envEnabled enables sharing: "1", "true", "yes" or "on". Any other value disables it.
	envEnabled = "SHARED_TENSOR_ENABLED"
	// envRole is the role if sharing is enabled: "server", "client" or "local". The default is client.
	envRole = "SHARED_TENSOR_ROLE"
	// envLocalRank and envRank number the processes of a job and thereby their sockets, so that each process has a
	// separate owner. Launchers set them. envLocalRank takes precedence.
	envLocalRank = "LOCAL_RANK"
	envRank      = "RANK"
	// envLogLevel is the minimum level of a node's log on standard error: "debug", "info", "warning", "error" or
	// "critical".
	envLogLevel = "SHARED_TENSOR_LOG_LEVEL"
)

// Mode is the role of a [Node].
type Mode uint8

const (
	// ModeAuto selects the role by the environment. If SHARED_TENSOR_ENABLED enables sharing (1, true, yes or on), it is
	// that of SHARED_TENSOR_ROLE (server, client or local), by default client. Otherwise it is local.
	ModeAuto Mode = iota
	// ModeLocal runs functions in this process and serves no clients.
	ModeLocal
	// ModeServer runs functions in this process and serves other processes.
	ModeServer
	// ModeClient calls functions of an owner in another process.
	ModeClient
)

// String returns the mode as one word.
func (m Mode) String() string {
	switch m {
	case ModeAuto:
		return "auto"
	case ModeLocal:
		return "local"
	case ModeServer:
		return "server"
	case ModeClient:
		return "client"
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// MarshalText returns the result of String.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText parses the output of MarshalText, as [ParseMode] does.
func (m *Mode) UnmarshalText(text []byte) (err error) {
	*m, err = ParseMode(string(text))
	return err
}

// ParseMode parses the output of String. It ignores case and surrounding blanks. It fails with [endpoint.ErrConfiguration].
func ParseMode(s string) (Mode, error) {
	for m := ModeAuto; m <= ModeClient; m++ {
		if strings.EqualFold(strings.TrimSpace(s), m.String()) {
			return m, nil
		}
	}
	return 0, status.Configuration(fmt.Errorf("%w: mode %q: it must be auto, local, server or client", status.ErrInvalid, s))
}

// resolve returns the role of a mode, from the environment if it is ModeAuto. A misspelt role is an error: with a
// default, the server would only appear to be missing.
func (m Mode) resolve() (Mode, error) {
	switch {
	case m > ModeClient:
		return 0, status.Configuration(fmt.Errorf("%w: unknown mode %d", status.ErrInvalid, uint8(m)))
	case m != ModeAuto:
		return m, nil
	case !truthy(os.Getenv(envEnabled)):
		return ModeLocal, nil
	}
	role := os.Getenv(envRole)
	if strings.TrimSpace(role) == "" {
		return ModeClient, nil
	}
	m, err := ParseMode(role)
	if err != nil || m == ModeAuto {
		return 0, status.Configuration(fmt.Errorf("%w: %s is %q: it must be server, client or local", status.ErrInvalid, envRole, role))
	}
	return m, nil
}

func truthy(s string) bool {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "1", "true", "yes", "on":
		return true
	}
	return false
}

// deviceIndex returns the index in the socket's path: the explicit one, else the rank of the process, else the index of
// the first device.
func deviceIndex(explicit int, devices []driver.Device) (int, error) {
	if explicit != 0 {
		return explicit, nil
	}
	for _, name := range []string{envLocalRank, envRank} {
		text := strings.TrimSpace(os.Getenv(name))
		if text == "" {
			continue
		}
		rank, err := strconv.Atoi(text)
		if err != nil || rank < 0 {
			return 0, status.Configuration(fmt.Errorf("%w: %s is %q: it must be a number, 0 or more", status.ErrInvalid, name, text))
		}
		return rank, nil
	}
	if len(devices) > 0 {
		return max(devices[0].Info().Index, 0), nil
	}
	return 0, nil
}

// defaultLogger returns a node's logger as the environment specifies, or nil if it specifies none.
func defaultLogger() (*slog.Logger, error) {
	text := strings.TrimSpace(os.Getenv(envLogLevel))
	var level slog.Level
	switch strings.ToLower(text) {
	case "":
		return nil, nil
	case "warning":
		level = slog.LevelWarn
	case "critical":
		level = slog.LevelError + 4
	default:
		if err := level.UnmarshalText([]byte(text)); err != nil {
			return nil, status.Configuration(fmt.Errorf("%w: %s is %q: it must be debug, info, warning, error or critical", status.ErrInvalid, envLogLevel, text))
		}
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})), nil
}
