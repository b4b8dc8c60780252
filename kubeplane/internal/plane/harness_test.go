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

// These tests are about processes, so they run the real binary: the one that KUBEPLANE names, else one built here.

const (
	readyWithin = 2 * time.Minute
	goneWithin  = 30 * time.Second
)

func TestMain(m *testing.M) {
	os.Exit(runWithBinary(m))
}

func runWithBinary(m *testing.M) int {
	if os.Getenv("KUBEPLANE") == "" {
		dir, err := os.MkdirTemp("", "kubeplane-test-")
		if err == nil {
			defer func() { _ = os.RemoveAll(dir) }()
			err = build(filepath.Join(dir, "kubeplane"))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// build builds the binary as README.md describes, unless KUBEPLANE names one.
func build(path string) error {
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return fmt.Errorf("reading the version of Kubernetes: %w", err)
	}
	v := strings.TrimSpace(string(version))
	parts := strings.Split(strings.TrimPrefix(v, "v"), ".")
	flags := "-s -w"
	for _, p := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags += fmt.Sprintf(" -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s -X %[1]s.gitTreeState=clean",
			p, v, parts[0], parts[1])
	}
	c := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", flags, "-o", path, "../..")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("building kubeplane: %w: %s", err, out)
	}
	return os.Setenv("KUBEPLANE", path)
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
	took           time.Duration
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
	began := time.Now()
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
	r.took = time.Since(began)
}

func (r *running) config(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", r.Kubeconfig)
	must(t, err)
	return config
}

func (r *running) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	return clientFor(t, r.config(t))
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
