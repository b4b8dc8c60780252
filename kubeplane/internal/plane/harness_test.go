// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/kubeplane/internal/plane"
)

const (
	readyWithin = 2 * time.Minute
	goneWithin  = 30 * time.Second
)

// TestMain builds the binary unless KUBEPLANE names one: these tests are about processes.
func TestMain(m *testing.M) {
	if os.Getenv("KUBEPLANE") == "" {
		const root = "../../.."
		if out, err := exec.Command("make", "-C", root, "kubeplane").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building kubeplane: %v\n%s", err, out)
			os.Exit(1)
		}
		_ = os.Setenv("KUBEPLANE", root+"/.cache/bin/kubeplane") // the name is valid
	}
	os.Exit(m.Run())
}

func binary(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(os.Getenv("KUBEPLANE"))
	must(t, err)
	return path
}

// running is a plane that a test has started.
type running struct {
	plane.Report
	cmd            *exec.Cmd
	stdout, stderr *bytes.Buffer // to be read only after done
	done           chan struct{}
	err            error // how it ended; to be read only after done
	readyFile      string
}

// launch starts `kubeplane up`, or wrapper with it as arguments, and does not wait.
func launch(t *testing.T, stdin io.Reader, wrapper []string, args ...string) *running {
	t.Helper()
	r := &running{
		stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}, done: make(chan struct{}),
		readyFile: filepath.Join(t.TempDir(), "ready.json"),
	}
	line := append(append([]string{}, wrapper...), binary(t), "up", "--exit-with-parent", "--ready-file", r.readyFile)
	line = append(line, args...)
	r.cmd = exec.Command(line[0], line[1:]...)
	// Temporary directories of planes that a test kills must not pile up on the machine.
	r.cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = stdin, r.stdout, r.stderr
	must(t, r.cmd.Start())
	go func() {
		r.err = r.cmd.Wait()
		close(r.done)
	}()
	t.Cleanup(func() {
		// Not with SIGKILL: components would still be dying while the test's directory is removed.
		_ = r.cmd.Process.Signal(syscall.SIGTERM)
		<-r.done
		if t.Failed() {
			t.Logf("kubeplane printed:\n%s", r.stderr)
		}
	})
	return r
}

func up(t *testing.T, args ...string) *running {
	t.Helper()
	r := launch(t, nil, nil, args...)
	r.awaitReady(t)
	return r
}

func (r *running) awaitReady(t *testing.T) {
	t.Helper()
	eventually(t, readyWithin, "the plane is ready", func() error {
		select {
		case <-r.done:
			t.Fatalf("kubeplane ended (%v) before it was ready:\n%s", r.err, r.stderr)
		default:
		}
		content, err := os.ReadFile(r.readyFile)
		if err != nil {
			return err
		}
		return json.Unmarshal(content, &r.Report)
	})
}

func (r *running) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", r.Kubeconfig)
	must(t, err)
	return clientFor(t, config)
}

func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	return client
}

// expectEnd waits for the process that the test started, and answers its exit code.
func (r *running) expectEnd(t *testing.T) int {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(goneWithin):
		t.Fatalf("kubeplane still runs after %s", goneWithin)
	}
	return r.cmd.ProcessState.ExitCode()
}

// expectNothingLeft waits until neither kubeplane nor any component runs.
func (r *running) expectNothingLeft(t *testing.T) {
	t.Helper()
	if len(r.PIDs) != 5 {
		t.Fatalf("the ready file names the processes %v; want kubeplane and four components", r.PIDs)
	}
	eventually(t, goneWithin, "all processes are gone", func() error {
		for name, pid := range r.PIDs {
			if alive(pid) {
				return fmt.Errorf("%s (%d) still runs", name, pid)
			}
		}
		return nil
	})
}

// alive does not count a zombie: the process has ended, and waiting for it is its parent's task.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

func (r *running) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	must(t, r.cmd.Process.Signal(s))
}

func eventually(t *testing.T, within time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %v", within, what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func expectEqual[T comparable](t *testing.T, found, want T) {
	t.Helper()
	if found != want {
		t.Errorf("found %v, want %v", found, want)
	}
}

func expectNoFile(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (%v)", path, err)
	}
}

func expectContains(t *testing.T, text, want string) {
	t.Helper()
	if !strings.Contains(text, want) {
		t.Errorf("want %q in:\n%s", want, text)
	}
}
