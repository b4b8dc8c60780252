// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/examples"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

// preparedRecipes are the recipes with a preparation of their template.
func preparedRecipes() []string { return []string{"kubeadm", "k3s", "rke2"} }

// renderPreparation returns the user-data of a recipe's builder VM. Templates and values
// are in the same Secret.
func renderPreparation(t *testing.T, name string) []byte {
	t.Helper()
	g := NewWithT(t)
	raw, err := examples.Files.ReadFile(name + "/prepare.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	var secret corev1.Secret
	g.Expect(yaml.UnmarshalStrict(raw, &secret)).To(Succeed())
	g.Expect(secret.Name).To(Equal(name + "-prepare"))
	data := bootdata.Data{Metadata: bootdata.Metadata{Hostname: "ubuntu-prepared"}, Values: secret.StringData}
	data.Values["sshAuthorizedKeys"] = "ssh-ed25519 AAAA a@b"
	data.Values["images"], data.Values["airgapImages"] = "registry.k8s.io/pause:3.8\nregistry.k8s.io/kube-proxy:v1.36.3\n", "core canal"
	files := render(t, bootdata.Templates{UserData: secret.StringData["user-data"]}, data)
	return files.UserData
}

// installation matches what a builder VM installs, which differs between recipes, and what follows.
var installation = regexp.MustCompile(`(?s)(apt-daily-upgrade\.timer\n)(.*\n)( +# What must differ.*echo v1\.36)\S*`)

func TestRenderPreparation(t *testing.T) {
	t.Parallel()
	for _, name := range preparedRecipes() {
		userData := renderPreparation(t, name)
		expectGolden(t, "prepare", ".user-data", installation.ReplaceAll(userData, []byte("$1$3")))
		expectGolden(t, name+"-prepare", ".sh", installation.FindSubmatch(userData)[2])
	}
}

// runPreparation runs the script of a builder VM with programs that only record their
// calls. failing is the program that fails. It returns the calls.
func runPreparation(t *testing.T, m machine, name, failing string) (calls []string, err error) {
	t.Helper()
	g := NewWithT(t)
	text := parseCloudConfig(t, renderPreparation(t, name)).files["/usr/local/sbin/prepare-template"]
	g.Expect(text).NotTo(BeEmpty())
	log := filepath.Join(m.root, "calls")
	for _, program := range []string{
		"apt-get", "apt-mark", "cloud-init", "ctr", "curl", "dpkg", "find", "fstrim", "journalctl", "rm", "sh", "systemctl",
	} {
		script := "#!/bin/bash\necho " + program + " \"$@\" >> " + log + "\n"
		if program == failing {
			script += "exit 1\n"
		}
		m.write(t, "bin/"+program, script)
	}
	m.write(t, "/etc/machine-id", "0123")
	m.write(t, "/run/utmp", "")
	m.write(t, "/etc/apt/sources.list.d/debian.sources", "")
	shell, err := exec.LookPath("sh")
	g.Expect(err).NotTo(HaveOccurred())
	command := exec.CommandContext(t.Context(), shell, "-c", absolutePath.ReplaceAllString(text, "${1}"+m.root+"/${2}/"))
	command.Env = []string{"PATH=" + filepath.Join(m.root, "bin") + ":" + os.Getenv("PATH")}
	out, err := command.CombinedOutput()
	t.Logf("%s", out)
	recorded, readErr := os.ReadFile(log)
	g.Expect(readErr).NotTo(HaveOccurred())
	return strings.Split(strings.TrimSpace(string(recorded)), "\n"), err
}

// A builder VM removes what must differ between Nodes, writes the file that Nodes check, and powers itself off.
// If its installation fails, it neither writes the file nor powers itself off.
func TestPreparationRecipes(t *testing.T) {
	t.Parallel()
	for _, name := range preparedRecipes() {
		for _, failing := range []string{"none", "apt-get", "curl"} {
			t.Run(name+"/"+failing, func(t *testing.T) {
				t.Parallel()
				g, m := NewWithT(t), machine{root: t.TempDir()}
				calls, err := runPreparation(t, m, name, failing)
				prepared, failed := BeAnExistingFile(), Not(BeAnExistingFile())
				if failing == "none" {
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(calls).To(ContainElements(Equal("cloud-init clean --logs"), ContainSubstring("/etc/ssh/ssh_host_")))
					g.Expect(calls[len(calls)-1]).To(Equal("systemctl poweroff"))
					g.Expect(m.read(t, "/etc/machine-id")).To(BeEmpty())
					g.Expect(m.read(t, "/etc/karpenter-prepared")).To(HavePrefix("v1.36"))
				} else {
					prepared, failed = failed, prepared
					g.Expect(err).To(HaveOccurred())
					g.Expect(calls).NotTo(ContainElement("systemctl poweroff"))
				}
				g.Expect(filepath.Join(m.root, "/etc/karpenter-prepared")).To(prepared)
				g.Expect(filepath.Join(m.root, "/run/karpenter-prepare-failed")).To(failed)
			})
		}
	}
}

// Nodes of a prepared template do not start their agent if the preparation is incomplete,
// and download nothing.
func TestRecipesPreparedTemplate(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]string{"kubeadm": "mask --runtime kubelet\n", "k3s": "daemon-reload\n", "rke2": "mask --runtime rke2-agent\n"} {
		for _, complete := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				g, m := NewWithT(t), machine{root: t.TempDir()}
				templates, data := recipeData(t, name)
				data.Values["prepared"] = "true"
				files := render(t, templates, data)
				g.Expect(string(files.UserData)).NotTo(MatchRegexp(`curl|apt-get`))
				check := parseCloudConfig(t, files.UserData).scripts[0]
				m.programs = map[string]string{"systemctl": "#!/bin/sh\necho \"$@\" >> " + m.root + "/calls\n", "tee": "#!/bin/sh\ncat\n"}
				if complete {
					m.write(t, "/etc/karpenter-prepared", "v1.36")
				}
				m.run(t, check)
				calls := filepath.Join(m.root, "calls")
				if complete {
					g.Expect(calls).NotTo(BeAnExistingFile())
				} else {
					g.Expect(m.read(t, "calls")).To(Equal(call))
					if name == "k3s" { // its unit is in /etc, which has precedence over a mask in /run
						g.Expect(m.read(t, "/run/systemd/system/k3s-agent.service.d/prepared.conf")).To(Equal("[Unit]\nConditionPathExists=/etc/karpenter-prepared\n"))
					}
				}
			})
		}
	}
}
