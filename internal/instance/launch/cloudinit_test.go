// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"net/url"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	inlineKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGniXftUOUzZmSn/WDg2LyXlhoHA4nM/MpPjaSVjahNo inline"
	secretKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGniXftUOUzZmSn/WDg2LyXlhoHA4nM/MpPjaSVjahNo secret+1@x"
)

// useCloudInit changes the class to boot data that Proxmox makes.
func useCloudInit(w *testenv.Env, options *v1alpha1.CloudInit) {
	w.NodeClass.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeCloudInit, CloudInit: options}
}

func createKeysSecret(w *testenv.Env, content string) *v1alpha1.SecretReference {
	w.T.Helper()
	w.Expect(w.Kube.Create(w.T.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "keys"}, Data: map[string][]byte{"authorized_keys": []byte(content)},
	})).To(Succeed())
	return &v1alpha1.SecretReference{Namespace: "kube-system", Name: "keys"}
}

// templatesWith changes the options of every template; an empty value removes one.
func templatesWith(options map[string]string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		for _, guest := range s.Guests {
			for option, value := range options {
				if guest.Config["template"] != "1" {
					continue
				}
				guest.Config[option] = value
				if value == "" {
					delete(guest.Config, option)
				}
			}
		}
	}
}

func TestLaunchCloudInitDrive(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(func(s *pvesim.Scenario) {
		s.Files = []pvesim.File{{Storage: "local", Name: "snippets/worker.yaml", Text: "#cloud-config\n# of the vendor\n"}}
	}))
	useCloudInit(w, &v1alpha1.CloudInit{
		User: "ops", SSHKeys: []string{inlineKey}, SSHKeysRef: createKeysSecret(w, "# ours\n\n"+secretKey+"\n"),
		Snippets: &v1alpha1.Snippets{Vendor: "local:snippets/worker.yaml"},
	})
	w.NodeClass.Spec.Network = &v1alpha1.Network{
		Interfaces: []v1alpha1.VMInterface{{Name: "net0", Address4: &v1alpha1.AddressSource{CIDR: "10.1.2.0/24", Ranges: []string{"10.1.2.7"}, Gateway: "10.1.2.1"}}},
		DNSServers: []string{"10.1.2.53"}, SearchDomains: []string{"example.com"},
	}
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in, _, err := instance.ReadIntent(claim)
	w.Expect(err).NotTo(HaveOccurred())

	cfg := w.VMConfig(in)
	keys, err := url.PathUnescape(cfg.Options["sshkeys"])
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(keys).To(Equal(inlineKey + "\n" + secretKey))
	for option, want := range map[string]string{
		"ciuser": "ops", "ciupgrade": "0", "cicustom": "vendor=local:snippets/worker.yaml",
		"ipconfig0": "ip=10.1.2.7/24,gw=10.1.2.1", "nameserver": "10.1.2.53", "searchdomain": "example.com",
	} {
		w.Expect(cfg.Options).To(HaveKeyWithValue(option, want))
	}
	image := w.Booted(in.VMID).CDROM
	for _, text := range []string{"hostname: pool-abc", "user: ops", "secret+1@x", "# of the vendor", "address: '10.1.2.7'", "'10.1.2.53'"} {
		w.Expect(image).To(ContainSubstring(text), "the guest reads it from its drive")
	}
	w.Expect(image).NotTo(ContainSubstring("package_upgrade"))

	// There is no ISO and no token to delete. The drive stays.
	w.ExpectNoBootDrives()
	w.ExpectNoTokens()
	w.Expect(p.Instances.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
	_, has := w.VMConfig(in).Drives().CloudInit()
	w.Expect(has).To(BeTrue())
	p.Delete(claim)
	w.ExpectNoOrphans()
}

func TestLaunchAddsCloudInitDrive(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		template map[string]string
		options  *v1alpha1.CloudInit
		slot     string
		storage  string
	}{
		"storage_of_the_disk":  {map[string]string{"ide2": ""}, nil, "scsi30", "local-lvm"},
		"storage_of_the_class": {map[string]string{"ide2": ""}, &v1alpha1.CloudInit{Storage: "local"}, "scsi30", "local"},
		"free_slot":            {map[string]string{"ide2": "none,media=cdrom", "scsihw": ""}, nil, "ide0", "local-lvm"},
		"inherited_drive":      {nil, &v1alpha1.CloudInit{Storage: "local"}, "ide2", "local-lvm"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t, testenv.Scenario(templatesWith(c.template)))
			useCloudInit(w, c.options)
			p := w.StartProcess()
			claim := p.Launched("pool-abc", w.NodeClass)
			in, _, err := instance.ReadIntent(claim)
			w.Expect(err).NotTo(HaveOccurred())
			cfg := w.VMConfig(in)
			drive, ok := cfg.Drives().CloudInit()
			w.Expect(ok).To(BeTrue())
			w.Expect(drive).To(And(HaveField("Slot", c.slot), HaveField("Storage", c.storage)))
			w.Expect(cfg.Options).To(HaveKeyWithValue("ipconfig0", "ip=dhcp"), "otherwise the drive would not configure the interface")
			w.Expect(w.Booted(in.VMID).CDROM).To(And(ContainSubstring("hostname: pool-abc"), ContainSubstring("type: dhcp4")))
			p.Delete(claim)
			w.ExpectNoOrphans()
		})
	}
}

func TestLaunchInheritsCloudInit(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(templatesWith(map[string]string{
		"ciuser": "admin", "sshkeys": proxmox.EncodeSSHKeys([]string{inlineKey}), "cicustom": "vendor=local:snippets/inherited.yaml", "ciupgrade": "0",
	}), func(s *pvesim.Scenario) {
		s.Files = []pvesim.File{{Storage: "local", Name: "snippets/inherited.yaml", Text: "#"}, {Storage: "local", Name: "snippets/meta.yaml", Text: "#"}}
	}))
	upgrade := true
	useCloudInit(w, &v1alpha1.CloudInit{PackageUpgrade: &upgrade, Snippets: &v1alpha1.Snippets{Meta: "local:snippets/meta.yaml"}})
	in, _, err := instance.ReadIntent(w.StartProcess().Launched("pool-abc", w.NodeClass))
	w.Expect(err).NotTo(HaveOccurred())
	options := w.VMConfig(in).Options
	w.Expect(options).To(And(
		HaveKeyWithValue("ciuser", "admin"), HaveKeyWithValue("sshkeys", proxmox.EncodeSSHKeys([]string{inlineKey})),
		HaveKeyWithValue("cicustom", "meta=local:snippets/meta.yaml,vendor=local:snippets/inherited.yaml"), HaveKeyWithValue("ciupgrade", "1"),
	))
}

func TestCheckCloudInit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options func(*testenv.Env) *v1alpha1.CloudInit
		want    string
	}{
		"truncated_key": {
			func(*testenv.Env) *v1alpha1.CloudInit {
				return &v1alpha1.CloudInit{SSHKeys: []string{inlineKey, "ssh-ed25519 AAAAC3NzaC1l me"}}
			},
			"reading spec.metadataOptions.cloudInit.sshKeys[1]: the SSH key is truncated",
		},
		"missing_secret": {
			func(*testenv.Env) *v1alpha1.CloudInit {
				return &v1alpha1.CloudInit{SSHKeysRef: &v1alpha1.SecretReference{Namespace: "kube-system", Name: "none"}}
			},
			"reading secret kube-system/none of spec.metadataOptions.cloudInit.sshKeysRef",
		},
		"other_secret": {
			func(*testenv.Env) *v1alpha1.CloudInit {
				return &v1alpha1.CloudInit{SSHKeysRef: &v1alpha1.SecretReference{Namespace: "kube-system", Name: "templates"}}
			},
			"it has no key authorized_keys",
		},
		"private_key": {
			func(w *testenv.Env) *v1alpha1.CloudInit {
				return &v1alpha1.CloudInit{SSHKeysRef: createKeysSecret(w, "# mine\n-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n")}
			},
			"authorized_keys, line 2: no SSH public key found",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			useCloudInit(w, c.options(w))
			err := w.StartProcess(testenv.NoPolling()).CheckBootData(w.NodeClass)
			w.Expect(err).To(MatchError(And(ContainSubstring(c.want), Not(ContainSubstring("c2VjcmV0")))))
		})
	}
}
