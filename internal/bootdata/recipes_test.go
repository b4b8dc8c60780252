// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	ignition "github.com/coreos/ignition/v2/config"
	. "github.com/onsi/gomega"
	"github.com/vincent-petithory/dataurl"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/examples"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

// bootConfig is the part of a rendered recipe that its guest writes and runs.
type bootConfig struct {
	files map[string]string
	// units are the contents of systemd units.
	units map[string]string
	// scripts are the shell scripts of runcmd, with the option of the shell.
	scripts []script
}

type script struct{ option, text string }

// kubeletRecipes are the recipes that configure kubelet and containerd themselves. k3s, RKE2
// and Talos do it in their guests.
func kubeletRecipes() []string {
	return []string{"kubeadm", "proxmox-cloud-init", "flatcar", "fedora-coreos"}
}

// renderRecipe returns what the guest of a recipe gets.
func renderRecipe(t *testing.T, name string) bootConfig {
	t.Helper()
	g := NewWithT(t)
	if name == "proxmox-cloud-init" {
		snippet, err := examples.Files.ReadFile(name + "/worker.cfg")
		g.Expect(err).NotTo(HaveOccurred())
		return parseCloudConfig(t, snippet)
	}
	templates, data := recipeData(t, name)
	return parseBootConfig(t, render(t, templates, data).UserData)
}

func parseBootConfig(t *testing.T, userData []byte) bootConfig {
	t.Helper()
	if bootdata.FormatOf(userData) == bootdata.FormatIgnition {
		return parseIgnition(t, userData)
	}
	return parseCloudConfig(t, userData)
}

func parseCloudConfig(t *testing.T, raw []byte) bootConfig {
	t.Helper()
	var config struct {
		WriteFiles []struct{ Path, Content string } `json:"write_files"`
		RunCmd     []any                            `json:"runcmd"`
	}
	NewWithT(t).Expect(yaml.Unmarshal(raw, &config)).To(Succeed())
	out := bootConfig{files: map[string]string{}}
	for _, file := range config.WriteFiles {
		out.files[file.Path] = file.Content
	}
	for _, command := range config.RunCmd {
		switch command := command.(type) {
		case string:
			out.scripts = append(out.scripts, script{"-c", command})
		case []any:
			if command[0] == "sh" {
				out.scripts = append(out.scripts, script{command[1].(string), command[2].(string)})
			}
		}
	}
	return out
}

func parseIgnition(t *testing.T, raw []byte) bootConfig {
	t.Helper()
	g := NewWithT(t)
	config, _, err := ignition.Parse(raw)
	g.Expect(err).NotTo(HaveOccurred())
	out := bootConfig{files: map[string]string{}, units: map[string]string{}}
	for _, file := range config.Storage.Files {
		source := *file.Contents.Source
		if !strings.HasPrefix(source, "data:") {
			continue
		}
		content, err := dataurl.DecodeString(source)
		g.Expect(err).NotTo(HaveOccurred())
		out.files[file.Path] = inflate(t, content.Data, file.Contents.Compression)
	}
	for _, unit := range config.Systemd.Units {
		if unit.Contents != nil {
			out.units[unit.Name] = *unit.Contents
		}
	}
	return out
}

// inflate returns the text of a file that may be compressed with gzip.
func inflate(t *testing.T, content []byte, compression *string) string {
	t.Helper()
	if compression == nil || *compression == "" {
		return string(content)
	}
	reader, err := gzip.NewReader(bytes.NewReader(content))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	text, err := io.ReadAll(reader)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// machine is a directory that scripts of a recipe use as root file system.
type machine struct {
	root string
	// programs are the contents of programs that replace those of this machine.
	programs map[string]string
}

func (m machine) write(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(m.root, name)
	NewWithT(t).Expect(os.MkdirAll(filepath.Dir(path), 0o700)).To(Succeed())
	syscall.ForkLock.RLock() // a child of another test that inherits the open file makes its exec fail: text file busy
	err := os.WriteFile(path, []byte(content), 0o700)
	syscall.ForkLock.RUnlock()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

// read returns a file, with the paths that the scripts wrote.
func (m machine) read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(m.root, name))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return strings.ReplaceAll(string(content), m.root, "")
}

var absolutePath = regexp.MustCompile(`(^|[\s'"])/(etc|var|usr/lib|opt|run|sys)/`)

// run runs a script below the root.
func (m machine) run(t *testing.T, s script) {
	t.Helper()
	text := absolutePath.ReplaceAllString(s.text, "${1}"+m.root+"/${2}/")
	for name, content := range m.programs {
		m.write(t, "bin/"+name, content)
	}
	command := exec.CommandContext(t.Context(), "sh", s.option, text)
	command.Env = []string{"PATH=" + filepath.Join(m.root, "bin") + ":" + os.Getenv("PATH")}
	out, err := command.CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "%s\n%s", text, out)
}

// boot writes the files of the recipe and runs its scripts that do not install packages.
func (m machine) boot(t *testing.T, config bootConfig) {
	t.Helper()
	for name, content := range config.files {
		m.write(t, name, content)
	}
	m.write(t, "/sys/class/dmi/id/product_serial", "h=worker;i=20001\n")
	for _, s := range config.scripts {
		m.run(t, s)
	}
}

// routes maps the options of "ip route get" to its output, as printed by iproute2.
type routes map[string]string

// TestRecipesBoot checks the configuration and the addresses that kubelets are started with, and the network plugins.
// After a power failure, pods that were created shortly before it would not restart if the results of CNI
// were not removed (containernetworking/cni#1055).
func TestRecipesBoot(t *testing.T) {
	t.Parallel()
	const (
		route4         = "192.0.2.1 via 10.0.0.1 dev eth0 src 10.0.0.9 uid 0 \n    cache \n"
		route6         = "2001:db8::1 from :: via fe80::1 dev eth0 proto ra src fd00::9 metric 100 pref medium\n"
		linkLocal      = "2001:db8::1 from :: via fe80::1 dev eth0 proto ra src fe80::9 metric 100 pref medium\n"
		stub, upstream = "nameserver 127.0.0.53\noptions edns0\n", "nameserver 10.0.0.1\n"
	)
	for name, test := range map[string]struct {
		routes     routes
		want       string
		resolvConf string
	}{
		"IPv4":            {routes{"-4": route4}, "10.0.0.9", stub},
		"IPv6":            {routes{"-6": route6}, "fd00::9", upstream},
		"dual_stack":      {routes{"-4": route4, "-6": route6}, "10.0.0.9,fd00::9", stub},
		"link_local_IPv6": {routes{"-4": route4, "-6": linkLocal}, "10.0.0.9", stub},
		"no_routes":       {routes{}, "", stub},
	} {
		for _, recipe := range kubeletRecipes() {
			t.Run(recipe+"/"+name, func(t *testing.T) {
				t.Parallel()
				g, config := NewWithT(t), renderRecipe(t, recipe)
				g.Expect(config.files).To(HaveKeyWithValue("/etc/tmpfiles.d/cni-results.conf", "R! /var/lib/cni/results\n"))
				m := machine{root: t.TempDir(), programs: map[string]string{"ip": test.routes.program()}}
				m.write(t, "/etc/resolv.conf", test.resolvConf)
				m.write(t, "/usr/lib/cni/bridge", "of the package")
				m.boot(t, config)
				m.run(t, script{"-c", config.files[config.startPre(t)]})
				g.Expect(m.read(t, "/var/lib/kubelet/kubeadm-flags.env")).To(Equal("KUBELET_KUBEADM_ARGS=--node-ip=" + test.want + "\n"))
				kubelet := parseKubeletConfig(t, m.read(t, "/var/lib/kubelet/config.yaml"))
				g.Expect(kubelet.CgroupDriver).To(Equal("systemd"))
				g.Expect(kubelet.ProviderID).To(HaveSuffix("/20001"))
				if config.units == nil {
					g.Expect(m.read(t, "/opt/cni/bin/bridge")).To(Equal("of the package"))
				}
				if test.resolvConf == stub || config.units != nil {
					g.Expect(kubelet.ResolverConfig).To(HaveValue(Equal("/run/systemd/resolve/resolv.conf")))
				} else {
					g.Expect(kubelet.ResolverConfig).To(BeNil(), "the default, /etc/resolv.conf")
				}
			})
		}
	}
}

// program returns a program that replaces ip.
func (r routes) program() string {
	text := "#!/bin/sh\ncase \"$1 $2 $3\" in\n"
	for option, output := range r {
		text += "'" + option + " route get') printf '" + strings.ReplaceAll(output, "\n", `\n`) + "';;\n"
	}
	return text + "*) echo 'RTNETLINK answers: Network is unreachable' >&2; exit 2;;\nesac\n"
}

// startPre returns the program that runs before the kubelet and prepares its arguments.
func (c bootConfig) startPre(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	unit, own := c.units["kubelet.service"]
	if own {
		g.Expect(unit).To(And(ContainSubstring("EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env\n"), ContainSubstring(" $KUBELET_KUBEADM_ARGS ")))
	} else {
		unit = c.files["/etc/systemd/system/kubelet.service.d/20-node-ip.conf"]
	}
	_, rest, found := strings.Cut(unit, "\nExecStartPre=-")
	g.Expect(found).To(BeTrue())
	program, _, _ := strings.Cut(rest, "\n")
	g.Expect(c.files).To(HaveKey(program))
	return program
}
