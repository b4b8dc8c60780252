// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	ignitionModule = "github.com/coreos/ignition/v2"
	kubeletURL     = "https://dl.k8s.io/release/v1.36.3/bin/linux/amd64/kubelet"
	kubeletProgram = "the kubelet"
)

// ignitionStages are the stages that run at first boot, in this order. The files stage writes
// everything that the recipes need.
var ignitionStages = []string{"fetch-offline", "fetch", "kargs", "disks", "mount", "files", "umount"}

// buildIgnition builds Ignition with the version that the controller validates with, and returns
// the path of the program. Settings that distributions set at build time are relative to the
// working directory, and there is no SELinux.
func buildIgnition(t *testing.T) string {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", ignitionModule)
	download.Dir = filepath.Join("..", "..")
	output, err := download.Output()
	if err != nil {
		t.Fatalf("downloading Ignition: %v\n%s", err, output)
	}
	var module struct{ Dir, Version string }
	check(t, json.Unmarshal(output, &module))
	source, program := t.TempDir(), filepath.Join(t.TempDir(), "ignition")
	check(t, os.CopyFS(source, os.DirFS(module.Dir)))
	replaced := filepath.Join(source, "internal", "exec", "util", "blkid")
	check(t, os.WriteFile(replaced+".go", read(t, "testdata", "blkid.go"), 0o600))
	check(t, os.Remove(replaced+".c"))
	flags := "-s -w"
	for name, value := range map[string]string{
		"version.Raw": module.Version, "distro.selinuxRelabel": "false", "distro.diskByLabelDir": "by-label", "distro.mountCmd": "./mount",
	} {
		flags += fmt.Sprintf(" -X %s/internal/%s=%s", ignitionModule, name, value)
	}
	// Without the path of the copy, Go finds the packages in its build cache.
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", program, "./internal")
	build.Dir, build.Env = source, append(os.Environ(), "CGO_ENABLED=1")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building Ignition: %v\n%s", err, output)
	}
	return program
}

// firstBoot is a VM at its first boot.
type firstBoot struct {
	program string // Ignition
	dir     string // working directory
	root    string // root directory of the disk
}

// newFirstBoot returns a VM with a boot drive. Mounting needs root, so mount is a copy here.
func newFirstBoot(t *testing.T, program, userData string) *firstBoot {
	t.Helper()
	b := &firstBoot{program: program, dir: t.TempDir()}
	b.root = filepath.Join(b.dir, "root")
	for path, content := range map[string]string{
		"by-label/cidata/user-data": userData, "mount": "#!/bin/sh\nshift 4\nexec cp -r \"$1/.\" \"$2\"\n", "root/etc/os-release": "", "tmp/x": "",
	} {
		b.write(t, path, content)
	}
	return b
}

// write writes a program or file below the working directory.
func (b *firstBoot) write(t *testing.T, path, content string) {
	t.Helper()
	path = filepath.Join(b.dir, path)
	check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	check(t, os.WriteFile(path, []byte(content), 0o700)) //nolint:gosec // one of them is a program
}

// run runs all stages as in the images for Proxmox VE.
func (b *firstBoot) run(t *testing.T) error {
	t.Helper()
	for _, stage := range ignitionStages {
		cmd := exec.CommandContext(t.Context(), b.program, "--platform=proxmoxve", "--stage="+stage, "--root="+b.root, "--log-to-stdout",
			"--config-cache=ignition.json", "--neednet=neednet", "--state-file=state")
		cmd.Dir = b.dir
		cmd.Env = append(os.Environ(), "TMPDIR="+filepath.Join(b.dir, "tmp"), "IGNITION_SYSTEM_CONFIG_DIR="+filepath.Join(b.dir, "base"))
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("stage %s: %w\n%s", stage, err, output)
		}
	}
	return nil
}

// read returns a file of the disk and its mode.
func (b *firstBoot) read(t *testing.T, path string) (string, fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(filepath.Join(b.root, path))
	check(t, err)
	return string(read(t, b.root, path)), info.Mode()
}

// ignitionConfig is the part of a configuration that the tests compare with the disk.
type ignitionConfig struct {
	Storage struct {
		Files []struct {
			Path     string
			Mode     fs.FileMode
			Contents struct{ Source, Compression string }
		}
	}
	Systemd struct {
		Units []struct {
			Name, Contents string
			Enabled, Mask  bool
		}
	}
}

// TestIgnition applies the recipes with the program that runs in the guest.
func TestIgnition(t *testing.T) {
	t.Parallel()
	program := buildIgnition(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(kubeletProgram)) }))
	t.Cleanup(server.Close)
	for _, recipe := range []string{"flatcar", "fedora-coreos"} {
		golden := string(readGolden(t, recipe+".user-data"))
		if !strings.Contains(golden, `"`+kubeletURL+`"`) {
			t.Fatalf("%s does not download the kubelet from %s", recipe, kubeletURL)
		}
		t.Run(recipe, func(t *testing.T) {
			t.Parallel()
			b := newFirstBoot(t, program, strings.ReplaceAll(golden, kubeletURL, server.URL))
			b.write(t, "root/etc/containerd/config.toml", "version = 1\n") // Fedora CoreOS has one
			check(t, b.run(t))
			var config ignitionConfig
			check(t, json.Unmarshal([]byte(golden), &config))
			b.checkFiles(t, golden, config)
			b.checkUnits(t, config)
			b.checkKubelet(t)
		})
		t.Run(recipe+"_with_wrong_kubelet", func(t *testing.T) {
			t.Parallel()
			verified := fmt.Sprintf(`"%s","verification":{"hash":"sha512-%0128d"}`, server.URL, 0)
			b := newFirstBoot(t, program, strings.ReplaceAll(golden, `"`+kubeletURL+`"`, verified))
			err := b.run(t)
			expect(t, err != nil && strings.Contains(err.Error(), "hash verification failed"), "found %v, want a failed verification", err)
		})
	}
}

// checkFiles checks that all files have their mode and content.
func (b *firstBoot) checkFiles(t *testing.T, golden string, config ignitionConfig) {
	t.Helper()
	_, err := os.Stat(filepath.Join(b.dir, "neednet"))
	check(t, err) // Ignition requests the network, which it needs for the kubelet
	for _, file := range config.Storage.Files {
		content, mode := b.read(t, file.Path)
		want := kubeletProgram
		if filepath.Base(file.Path) != "kubelet" {
			want = string(ignitionFile(t, []byte(golden), file.Path))
		}
		expect(t, mode == file.Mode && content == want, "%s has mode %v and content %q, want %v and %q", file.Path, mode, content, file.Mode, want)
	}
}

// checkUnits checks that units are written, and will be enabled or masked.
func (b *firstBoot) checkUnits(t *testing.T, config ignitionConfig) {
	t.Helper()
	var enabled []string
	for _, unit := range config.Systemd.Units {
		path := filepath.Join("etc/systemd/system", unit.Name)
		if unit.Contents != "" {
			content, _ := b.read(t, path)
			expect(t, content == unit.Contents, "unit %s is:\n%s", unit.Name, content)
		}
		if target, err := os.Readlink(filepath.Join(b.root, path)); unit.Mask && target != "/dev/null" {
			t.Errorf("unit %s is not masked: %q, %v", unit.Name, target, err)
		}
		if unit.Enabled {
			enabled = append(enabled, "enable "+unit.Name)
		}
	}
	slices.Sort(enabled)
	// systemd applies presets at first boot.
	preset, _ := b.read(t, "etc/systemd/system-preset/20-ignition.preset")
	expect(t, preset == strings.Join(enabled, "\n")+"\n" && len(enabled) == 2, "found presets:\n%s", preset)
}

// checkKubelet checks that the service of the kubelet, its configuration and the kubeconfig with the
// join token refer to files that exist.
func (b *firstBoot) checkKubelet(t *testing.T) {
	t.Helper()
	unit, _ := b.read(t, "etc/systemd/system/kubelet.service")
	for _, match := range regexp.MustCompile(`(?m)^Exec\w+=-?(\S+)`).FindAllStringSubmatch(unit, -1) {
		_, mode := b.read(t, match[1])
		expect(t, mode == 0o755, "%s has mode %v", match[1], mode)
	}
	flags := map[string]string{}
	for _, match := range regexp.MustCompile(`--([a-z-]+)=(\S+)`).FindAllStringSubmatch(unit, -1) {
		flags[match[1]] = match[2]
	}
	_, err := os.Stat(filepath.Join(b.root, flags["kubeconfig"]))
	expect(t, flags["kubeconfig"] != "" && err != nil, "%q exists, so the kubelet does not use the join token", flags["kubeconfig"])
	for file, settings := range map[string][]string{
		"config":               {"providerID:proxmox://region-1/20001", "cgroupDriver:systemd"},
		"bootstrap-kubeconfig": {"server:https://kubernetes.example.com:6443", "token:abcdef.0123456789abcdef"},
	} {
		content, mode := b.read(t, flags[file])
		parsed := fmt.Sprint(parseYAML(t, []byte(content)))
		for _, setting := range settings {
			expect(t, mode == 0o600 && strings.Contains(parsed, setting), "%s has mode %v and content %s, want %s", file, mode, parsed, setting)
		}
		for _, match := range regexp.MustCompile(`(?m)(?:clientCAFile|certificate-authority): (\S+)`).FindAllStringSubmatch(content, -1) {
			b.read(t, match[1])
		}
	}
}
