// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// withHardware adds mappings and the privileges that hardware options need.
func withHardware(s *pvesim.Scenario) {
	s.Mappings = []pvesim.Mapping{
		{Kind: "usb", ID: "dongle", Map: []string{"node=pve1,id=1234:5678"}},
		{Kind: "pci", ID: "gpu", Map: []string{"node=pve1,path=0000:01:00.0,id=10de:20b0"}},
	}
	s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use", "Sys.Modify")
}

func TestLaunchHardware(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(withHardware))
	w.NodeClass.Spec.Description = "pool {{ .NodePool }} on {{ .Zone }}"
	w.NodeClass.Spec.Tags = []string{"k8s", "type-{{ .InstanceType | lower }}", `{{ if eq .Region "other" }}other{{ end }}`}
	w.NodeClass.Spec.Hardware = &v1alpha1.Hardware{
		CPUUnits: new(int32(50)), Balloon: new(int32(512)), Hotplug: []string{"disk"},
		Watchdog: &v1alpha1.Watchdog{}, RNG: &v1alpha1.RNG{}, TPM: &v1alpha1.TPMState{},
		USB: []v1alpha1.USBDevice{{Mapping: "dongle"}}, PCI: []v1alpha1.PCIDevice{{Mapping: "gpu"}},
		Agent: &v1alpha1.Agent{Enabled: true}, Startup: &v1alpha1.StartupOrder{Order: new(int32(7))},
	}
	p := w.StartProcess()
	claim := p.Launched("default-a", w.NodeClass)
	in := w.Intent(claim)
	w.Expect(in.Devices).To(Equal([]string{"gpu"}), "devices are planned, so no other VM gets them")
	cfg := w.VMConfig(in)
	for option, value := range map[string]string{
		"cpuunits": "50", "balloon": "512", "hotplug": "disk", "watchdog": "model=i6300esb,action=reset", "rng0": "source=/dev/urandom",
		"usb0": "mapping=dongle", "hostpci0": "mapping=gpu", "agent": "enabled=1", "startup": "order=7",
	} {
		w.Expect(cfg.Options).To(HaveKeyWithValue(option, value))
	}
	w.Expect(cfg.Options["tpmstate0"]).To(ContainSubstring("version=v2.0"))
	w.Expect(cfg.Tags()).To(HaveLen(2), "a tag that renders to nothing is omitted")
	w.Expect(cfg.Tags()).To(ContainElement(HavePrefix("type-")))
	w.Expect(cfg.Description()).To(ContainSubstring(" on " + in.Host + "\n"))
	p.Delete(claim)
	w.ExpectNoOrphans()
}

func TestLaunchEncryption(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	w.NodeClass.Spec.Hardware = &v1alpha1.Hardware{
		ConfidentialComputing: &v1alpha1.ConfidentialComputing{AMDSEV: &v1alpha1.AMDSEV{Type: "std"}},
	}
	w.Expect(w.StartProcess().Launch(w.StartProcess().Planned("without", w.NodeClass), w.NodeClass)).
		To(MatchError(ContainSubstring("encrypting the memory of VM")))
	p := w.StartProcess(testenv.AsRoot())
	cfg := w.VMConfig(w.Intent(p.Launched("with", w.NodeClass)))
	w.Expect(cfg.Options).To(HaveKeyWithValue("amd-sev", "type=std"))
}

func TestLaunchEncryptionOfTemplate(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(templatesWith(map[string]string{"amd-sev": "type=std"})))
	w.NodeClass.Spec.Hardware = &v1alpha1.Hardware{
		ConfidentialComputing: &v1alpha1.ConfidentialComputing{AMDSEV: &v1alpha1.AMDSEV{Type: "std"}},
	}
	p := w.StartProcess()
	cfg := w.VMConfig(w.Intent(p.Launched("without-root", w.NodeClass)))
	w.Expect(cfg.Options).To(HaveKeyWithValue("amd-sev", "type=std"))
}

func TestLaunchInvalidTag(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	w.NodeClass.Spec.Tags = []string{"{{ .ProviderID }}"}
	p := w.StartProcess()
	claim := p.Planned("default-a", w.NodeClass)
	w.Expect(p.Launch(claim, w.NodeClass)).To(MatchError(And(ContainSubstring(`spec.tags[0] "{{ .ProviderID }}" renders to "proxmox://`), ContainSubstring("which is not a tag"))))
}
