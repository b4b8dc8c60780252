// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestCommandLineInvalid(t *testing.T) {
	t.Parallel()
	foreign := t.TempDir()
	must(t, os.WriteFile(filepath.Join(foreign, "precious"), nil, 0o600))
	for name, c := range map[string]struct {
		line string
		want []string
	}{
		"unknown command":   {"dwon", []string{`unknown command "dwon"`}},
		"unknown flag":      {"up --prot 1", []string{"unknown flag: --prot", "kubeplane up --help"}},
		"stray argument":    {"up now", []string{`unknown command "now"`}},
		"no duration":       {"up --node-monitor-grace-period soon", []string{"--node-monitor-grace-period", `"soon"`}},
		"negative duration": {"up --node-monitor-grace-period -1s", []string{"--node-monitor-grace-period is -1s", "more than zero"}},
		"unknown gate":      {"up --feature-gates NoSuchGate=true", []string{"--feature-gates", "NoSuchGate", "A=true,B=false"}},
		"gate without bool": {"up --feature-gates InPlacePodVerticalScaling", []string{"--feature-gates", "missing bool value"}},
		"missing directory": {"up --ready-file /no/such/dir/ready", []string{"--ready-file", "/no/such/dir is not a directory"}},
		"foreign directory": {"up --dir " + foreign, []string{"--dir " + foreign, "not kubeplane's"}},
		"link to nowhere":   {"link", []string{"accepts 1 arg(s)"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := exec.Command(binary(t), strings.Fields(c.line)...).CombinedOutput()
			if err == nil {
				t.Errorf("kubeplane %s succeeds", c.line)
			}
			for _, want := range c.want {
				expectContains(t, string(out), want)
			}
			if lines := strings.Count(string(out), "\n"); lines > 3 {
				t.Errorf("a message of %d lines hides what is wrong:\n%s", lines, out)
			}
		})
	}
}

func TestCommandLineKubernetesFlags(t *testing.T) {
	t.Parallel()
	out, err := exec.Command(binary(t), "--version").CombinedOutput()
	if err != nil || !regexp.MustCompile(`^kubeplane version v1\.\d+\.\d+\n`).Match(out) {
		t.Errorf("kubeplane --version: %v\n%s", err, out)
	}
	out, err = exec.Command(binary(t), "up", "--help").CombinedOutput()
	if err != nil || strings.Contains(string(out), "Global Flags") {
		t.Errorf("kubeplane up --help, with flags that mean nothing here: %v\n%s", err, out)
	}
}

func TestLink(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "assets")
	for range 2 { // the second time over its own links
		out, err := exec.Command(binary(t), "link", dir).CombinedOutput()
		if err != nil {
			t.Fatalf("linking: %v\n%s", err, out)
		}
		if want := "export KUBEBUILDER_ASSETS=" + dir + "\n"; string(out) != want {
			t.Errorf("link prints %q; want %q", out, want)
		}
	}
	for program, versionFlag := range map[string]string{
		"etcd": "--version", "kubectl": "version --client", "kube-apiserver": "--version",
		"kube-controller-manager": "--version", "kube-scheduler": "--version",
	} {
		byLink, err := exec.Command(filepath.Join(dir, program), strings.Fields(versionFlag)...).CombinedOutput()
		if err != nil {
			t.Errorf("%s %s: %v\n%s", program, versionFlag, err, byLink)
		}
		byArgument, err := exec.Command(binary(t), append([]string{program}, strings.Fields(versionFlag)...)...).CombinedOutput()
		if err != nil || string(byArgument) != string(byLink) {
			t.Errorf("kubeplane %s %s: %v\n%s\nwant the same as by its link:\n%s", program, versionFlag, err, byArgument, byLink)
		}
	}
	other := t.TempDir()
	must(t, os.WriteFile(filepath.Join(other, "etcd"), []byte("mine"), 0o600))
	out, err := exec.Command(binary(t), "link", other).CombinedOutput()
	if err == nil {
		t.Error("link replaces a file that is not a link")
	}
	expectContains(t, string(out), "exists and is not a link")
}
