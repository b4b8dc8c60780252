// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"net/url"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// setUserData replaces the template of the user data.
func setUserData(w *testenv.Env, text string) {
	w.T.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: testenv.TemplatesSecret}}
	testenv.Modify(w, secret, func(secret *corev1.Secret) { secret.Data["user-data"] = []byte(text) })
}

// The kubelet gets the pods that the instance type claims, and boot data has its hugepages as numbers
// of pages.
func TestLaunchUserData(t *testing.T) {
	t.Parallel()
	const small = "c1.1VCPU-2GB"
	for name, test := range map[string]struct {
		instanceType string
		class        *v1alpha1.KubeletConfiguration
		hugepages    corev1.ResourceList
		want         string
	}{
		"small_type":               {instanceType: small, want: "pods=64 hugepages=0,0;"},
		"max_pods_of_kubelet":      {instanceType: testenv.InstanceType, want: "pods=0 hugepages=0,0;"},
		"max_pods_of_NodeClass":    {instanceType: small, class: &v1alpha1.KubeletConfiguration{MaxPods: new(int32(110))}, want: "pods=110 hugepages=0,0;"},
		"no_max_pods_in_NodeClass": {instanceType: small, class: &v1alpha1.KubeletConfiguration{ClusterDNS: []string{"10.96.0.10"}}, want: "pods=64 hugepages=0,0;"},
		"hugepages_of_1Gi_and_512M": {instanceType: small, hugepages: corev1.ResourceList{
			"hugepages-1Gi": resource.MustParse("1Gi"), "hugepages-2Mi": resource.MustParse("512Mi"),
		}, want: "hugepages=1,256;"},
	} {
		instanceType, _ := instancetype.DefaultCatalog().Get(test.instanceType)
		instanceType.Extra = test.hugepages
		catalog, err := instancetype.NewCatalog([]instancetype.Type{instanceType})
		testenv.Must(t, err)
		testenv.With(testenv.NoPolling(), testenv.Catalog(catalog)).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			setUserData(w, "#cloud-config\n# pods={{ .Kubernetes.KubeletConfiguration.MaxPods }} "+
				"hugepages={{ .Resources.Hugepages1Gi }},{{ .Resources.Hugepages2Mi }};\n")
			w.NodeClass.Spec.KubeletConfiguration = test.class
			claim := p.Launched("pool-abc", w.NodeClass, ofType(test.instanceType))
			w.Expect(w.Booted(w.Intent(claim).VMID).CDROM).To(ContainSubstring(test.want))
		})
	}
}

func TestLaunchBootDriveSlot(t *testing.T) {
	t.Parallel()
	for slot, template := range map[string]map[string]string{"scsi30": {"hotplug": "network"}, "ide2": {"scsihw": ""}} {
		testenv.With(testenv.Scenario(templatesWith(template))).Subtest(t, slot, func(w *testenv.Env, p *testenv.Process) {
			claim, in := launchVM(w, p)
			drive, _ := w.VMConfig(in).Drives().Find(slot)
			w.Expect(drive.VolumeID).To(ContainSubstring(string(claim.UID)))
			w.Expect(w.Booted(in.VMID).CDROM).To(ContainSubstring("pool-abc"), "the guest reads its boot data there")

			w.Expect(p.Instances.Deleter.CleanupBootDrive(w.Context(), claim)).To(Succeed())
			drive, _ = w.VMConfig(in).Drives().Find(slot)
			w.Expect(drive.VolumeID).To(Equal("none"), "no change is pending")
			w.ExpectNoBootDrives()
			p.DeleteAll(claim)
		})
	}
}

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
	w.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "keys"}, Data: map[string][]byte{"authorized_keys": []byte(content)}})
	return &v1alpha1.SecretReference{Namespace: "kube-system", Name: "keys"}
}

// snippets are files on the storage local.
func snippets(text string, names ...string) testenv.Option {
	return testenv.Scenario(func(s *pvesim.Scenario) {
		for _, name := range names {
			s.Files = append(s.Files, pvesim.File{Storage: "local", Name: "snippets/" + name, Text: text})
		}
	})
}

func TestLaunchCloudInitDrive(t *testing.T) {
	testenv.With(testenv.NoPolling(), snippets("#cloud-config\n# of the vendor\n", "worker.yaml")).Test(t, func(w *testenv.Env, p *testenv.Process) {
		useCloudInit(w, &v1alpha1.CloudInit{
			User: "ops", SSHKeys: []string{inlineKey}, SSHKeysRef: createKeysSecret(w, "# ours\n\n"+secretKey+"\n"),
			Snippets: &v1alpha1.Snippets{Vendor: "local:snippets/worker.yaml"},
		})
		w.NodeClass.Spec.Network = &v1alpha1.Network{
			Interfaces: []v1alpha1.VMInterface{{Name: "net0", Address4: &v1alpha1.AddressSource{
				CIDR: "10.1.2.0/24", Ranges: []string{"10.1.2.7"}, Gateway: "10.1.2.1",
			}}},
			DNSServers: []string{"10.1.2.53"}, SearchDomains: []string{"example.com"},
		}
		claim, in := launchVM(w, p)
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
		w.Expect(p.Instances.Deleter.CleanupBootDrive(w.Context(), claim)).To(Succeed())
		_, has := w.VMConfig(in).Drives().CloudInit()
		w.Expect(has).To(BeTrue())
		p.DeleteAll(claim)
	})
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
		testenv.With(testenv.NoPolling(), testenv.Scenario(templatesWith(c.template))).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			useCloudInit(w, c.options)
			claim := p.Launched("pool-abc", w.NodeClass)
			cfg := w.VMConfig(w.Intent(claim))
			drive, ok := cfg.Drives().CloudInit()
			w.Expect(ok).To(BeTrue())
			w.Expect(drive).To(And(HaveField("Slot", c.slot), HaveField("Storage", c.storage)))
			w.Expect(cfg.Options).To(HaveKeyWithValue("ipconfig0", "ip=dhcp"), "otherwise the drive would not configure the interface")
			w.Expect(w.Booted(w.Intent(claim).VMID).CDROM).To(And(ContainSubstring("hostname: pool-abc"), ContainSubstring("type: dhcp4")))
			p.DeleteAll(claim)
		})
	}
}

func TestLaunchInheritsCloudInit(t *testing.T) {
	keys := proxmox.EncodeSSHKeys([]string{inlineKey})
	testenv.With(testenv.NoPolling(), snippets("#", "inherited.yaml", "meta.yaml"), testenv.Scenario(templatesWith(map[string]string{
		"ciuser": "admin", "sshkeys": keys, "cicustom": "vendor=local:snippets/inherited.yaml", "ciupgrade": "0",
	}))).Test(t, func(w *testenv.Env, p *testenv.Process) {
		useCloudInit(w, &v1alpha1.CloudInit{PackageUpgrade: new(true), Snippets: &v1alpha1.Snippets{Meta: "local:snippets/meta.yaml"}})
		options := w.VMConfig(w.Intent(p.Launched("pool-abc", w.NodeClass))).Options
		w.Expect(options).To(And(HaveKeyWithValue("ciuser", "admin"), HaveKeyWithValue("sshkeys", keys),
			HaveKeyWithValue("cicustom", "meta=local:snippets/meta.yaml,vendor=local:snippets/inherited.yaml"), HaveKeyWithValue("ciupgrade", "1")))
	})
}

func TestCheckCloudInit(t *testing.T) {
	t.Parallel()
	secret := func(name string) *v1alpha1.CloudInit {
		return &v1alpha1.CloudInit{SSHKeysRef: &v1alpha1.SecretReference{Namespace: "kube-system", Name: name}}
	}
	for name, c := range map[string]struct {
		options *v1alpha1.CloudInit
		want    string
	}{
		"truncated_key": {
			&v1alpha1.CloudInit{SSHKeys: []string{inlineKey, "ssh-ed25519 AAAAC3NzaC1l me"}},
			"reading spec.metadataOptions.cloudInit.sshKeys[1]: the SSH key is truncated",
		},
		"missing_secret": {secret("none"), "reading secret kube-system/none of spec.metadataOptions.cloudInit.sshKeysRef"},
		"other_secret":   {secret("templates"), "it has no key authorized_keys"},
		"private_key":    {secret("keys"), "authorized_keys, line 2: no SSH public key found"},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			createKeysSecret(w, "# mine\n-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n")
			useCloudInit(w, c.options)
			w.Expect(p.CheckBootData(w.NodeClass)).To(MatchError(And(ContainSubstring(c.want), Not(ContainSubstring("c2VjcmV0")))))
		})
	}
}

// useFirmware changes the class to Ignition by firmware.
func useFirmware(w *testenv.Env) {
	w.T.Helper()
	w.NodeClass.Spec.MetadataOptions.Type = v1alpha1.MetadataTypeFirmware
	setUserData(w, `variant: flatcar
version: 1.1.0
storage:
  files:
    - path: /etc/token
      contents: {inline: "{{ .Kubernetes.BootstrapToken }}"}
`)
}

func TestLaunchIgnitionByFirmware(t *testing.T) {
	t.Parallel()
	const inherited = "-no-hpet"
	for _, release := range []string{"8.4", "9.2"} {
		testenv.With(testenv.NoPolling(), testenv.AsRoot(), testenv.Scenario(func(s *pvesim.Scenario) {
			s.Version = release
		}, templatesWith(map[string]string{"args": inherited}))).Subtest(t, release, func(w *testenv.Env, p *testenv.Process) {
			useFirmware(w)
			w.Expect(p.CheckBootData(w.NodeClass)).To(Succeed())
			p.DeleteAll(p.Launched("deleted", w.NodeClass)) // before the cleanup
			claim := p.Launched("fw", w.NodeClass)
			in := w.Intent(claim)
			files := w.Booted(in.VMID).Firmware
			for _, name := range []string{"opt/com.coreos/config", "opt/org.flatcar-linux/config"} {
				w.Expect(string(files[name])).To(And(HavePrefix("{"), ContainSubstring("ignition"), ContainSubstring("/etc/token")), name)
			}
			cfg := w.VMConfig(in)
			w.Expect(cfg.Options["args"]).To(HavePrefix(inherited + " -fw_cfg "))
			w.Expect(cfg.Options["args"]).NotTo(ContainSubstring("ignition"), "many users may read the arguments")
			w.Expect(cfg.Drives().All()).NotTo(ContainElement(HaveField("VolumeID", ContainSubstring(".iso"))), "it is not a drive")

			// After the cleanup the VM starts without the file.
			w.Expect(p.Instances.Deleter.CleanupBootDrive(w.Context(), claim)).To(Succeed())
			w.ExpectNoBootDrives()
			w.ExpectNoTokens()
			w.Wait(w.Client.StopVM(w.Context(), in.Host, in.VMID))
			w.Wait(w.Client.StartVM(w.Context(), in.Host, in.VMID))
			w.Expect(w.VMConfig(in).Options["args"]).To(Equal(inherited))
			p.DeleteAll(claim)

			setUserData(w, "#cloud-config\nhostname: a\n")
			w.Expect(p.CheckBootData(w.NodeClass)).To(MatchError(
				"user-data is cloud-config, but spec.metadataOptions.type fwcfg is for Ignition: write it in Butane or Ignition, or set type to cdrom"))
		})
	}
}

// The root login was removed from the cloud config.
func TestLaunchWithoutRootLogin(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		useFirmware(w)
		before := w.StartProcess(testenv.AsRoot())
		claim, joined := before.Planned("fw", w.NodeClass), before.Launched("joined", w.NodeClass)
		p.Refresh()
		const noLogin = "region " + testenv.Region + ": the cloud config has no login of root"
		w.Expect(p.Launch(claim, w.NodeClass)).To(And(BeAssignableToTypeOf(&instance.LaunchError{}), MatchError(ContainSubstring(noLogin))))

		// The file stays, since the VM would not start without it; the token is deleted.
		w.Expect(p.Instances.Deleter.CleanupBootDrive(w.Context(), w.Stored(joined))).To(MatchError(ContainSubstring(noLogin)))
		w.Expect(w.BootDrives("pve1")).To(ContainElement(ContainSubstring(string(joined.UID))))
		w.Expect(p.Tokens()).NotTo(ContainElement("joined"))
	})
}
