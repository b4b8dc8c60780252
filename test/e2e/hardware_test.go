// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestHardware checks that VMs get the hardware options, the tags and the description of their
// NodeClass, and that their guests join with boot data in two parts.
func TestHardware(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it has USB devices"))
	for _, release := range []string{"8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, setup{hosts: 1, version: release, scenario: func(s *pvesim.Scenario) {
				s.Mappings = append(s.Mappings, pvesim.Mapping{Kind: "usb", ID: "dongle", Map: []string{"node=pve1,id=1234:5678"}})
				s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use", "Sys.Modify")
			}})
			e.checkHardware(t, release)
		})
	}
}

func (e *env) checkHardware(t *testing.T, release string) {
	t.Helper()
	p := e.newNodePool(t, "hardware", func(kit *harness.Kit) {
		spec := &kit.Class.Spec
		first := *spec.MetadataOptions.TemplatesRef
		must(t, e.kube.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: first.Namespace, Name: "hardware-more"},
			Data:       map[string]string{"user-data": "#cloud-config\nwrite_files:\n- {path: /etc/more, content: \"{{ .Metadata.NodePool }}\"}\n"},
		}))
		spec.MetadataOptions.TemplatesRef = nil
		spec.MetadataOptions.TemplatesRefs = []v1alpha1.TemplatesReference{
			{Kind: "Secret", Namespace: first.Namespace, Name: first.Name}, {Kind: "ConfigMap", Namespace: first.Namespace, Name: "hardware-more"},
		}
		spec.Description = "owner {{ .NodePool }}"
		spec.Tags = []string{"k8s", "pool-{{ .NodePool }}"}
		spec.Hardware = &v1alpha1.Hardware{
			CPUUnits: new(int32(200)), Watchdog: &v1alpha1.Watchdog{}, RNG: &v1alpha1.RNG{}, TPM: &v1alpha1.TPMState{},
			USB: []v1alpha1.USBDevice{{Mapping: "dongle"}}, Startup: &v1alpha1.StartupOrder{Order: new(int32(5))},
		}
		if release != "8.4" {
			spec.Hardware.KSM = new(false)
		}
	})
	p.deployPods(t, 1)
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", settled)
	vms, err := p.vms(t.Context())
	must(t, err)
	for option, want := range map[string]string{
		"watchdog": "model=i6300esb,action=reset", "rng0": "source=/dev/urandom", "usb0": "mapping=dongle", "startup": "order=5",
		"tpmstate0": "version=v2.0", "tags": "pool-" + p.name, "description": "owner " + p.name,
	} {
		if found, _ := vms[0].Config[option].(string); !strings.Contains(found, want) {
			t.Errorf("the VM has %s %q, want it to contain %q", option, found, want)
		}
	}
	p.deleteClaims(t, claim)
}
