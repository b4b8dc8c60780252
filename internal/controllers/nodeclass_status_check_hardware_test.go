// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func hardware(h v1alpha1.Hardware) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Hardware = &h }
}

var tdx = hardware(v1alpha1.Hardware{ConfidentialComputing: &v1alpha1.ConfidentialComputing{IntelTDX: &v1alpha1.IntelTDX{}}})

func description(text string) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Description = text }
}

func TestCheckHardware(t *testing.T) {
	runChecks(t, v1alpha1.ConditionHardwareReady, v1alpha1.ReasonHardwareUnsupported, map[string]checkCase{
		"KSM_on_9.2": {release: "9.2", class: hardware(v1alpha1.Hardware{KSM: new(false)})},
		"KSM_on_8.4": {release: "8.4", class: hardware(v1alpha1.Hardware{KSM: new(false)}),
			want: "region-1: spec.hardware.ksm false needs Proxmox VE 9.1 or newer, this is 8.4; upgrade it, remove the field, or set spec.region to a newer cluster"},
		"TDX_on_9.2": {release: "9.2", class: tdx, root: true},
		"TDX_on_8.4": {release: "8.4", class: tdx, root: true,
			want: "region-1: spec.hardware.confidentialComputing.intelTDX needs Proxmox VE 9.1 or newer, this is 8.4..."},
		"RNG_on_8.4": {release: "8.4", class: hardware(v1alpha1.Hardware{RNG: &v1alpha1.RNG{Source: "urandom"}})},
		"TPM_storage": {class: hardware(v1alpha1.Hardware{TPM: &v1alpha1.TPMState{Version: "v2.0", Storage: "nowhere"}}),
			want: `region-1/pve1: spec.hardware.tpm.storage "nowhere" is not on this host, which has...`},
		"description": {class: description("{{ .Pool }}"), reason: v1alpha1.ReasonTextInvalid,
			want: `spec.description: line 1, column 3: Metadata has no field "Pool"...`},
		"description_with_comment": {class: description("<!-- x"), reason: v1alpha1.ReasonTextInvalid,
			want: `spec.description contains "<!--": comments are reserved for the ownership mark of the VM`},
		"USB_on_one_host": {hosts: 2, scenario: withMapping("usb", "dongle", "node=pve2,id=1234:5678"), unread: true,
			class: hardware(v1alpha1.Hardware{USB: []v1alpha1.USBDevice{{Mapping: "dongle"}}}),
			unusable: map[string]string{
				"pve1": `spec.hardware.usb[0].mapping: USB mapping "dongle" has no device on this host; add one (Datacenter, Resource Mappings)`,
			}},
	})
}

// Exclusive cores require a setup by an administrator on each Host. The class reports that before
// any pod waits.
func TestCheckCPULayout(t *testing.T) {
	cpu := func(layout v1alpha1.CPULayout) func(*v1alpha1.ProxmoxNodeClass) {
		return func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.CPU = &layout }
	}
	runChecks(t, v1alpha1.ConditionCPULayoutReady, v1alpha1.ReasonCPULayoutUnsupported, map[string]checkCase{
		"bound_memory": {class: cpu(v1alpha1.CPULayout{NUMA: v1alpha1.NUMABind})},
		"slot_of_other_template": {
			hosts: 2, class: cpu(v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}),
			scenario: func(s *pvesim.Scenario) {
				s.Guests = append(s.Guests, pvesim.Guest{VMID: 9100, Name: "slot", Host: "pve2", Config: map[string]string{
					"template": "1", "memory": "2048", "cores": "2", "affinity": "2-3", "tags": "karpenter-slot-pinned", "scsi0": "local-lvm:base-9100-disk-0,size=3G",
				}})
			},
			want: "region-1/pve1, region-1/pve2: spec.cpu.pinning Exclusive needs one of: ...",
		},
		// Hosts with several sockets need no settings if pve-hook published their topology.
		"published_topology": {
			hosts: 2, class: cpu(v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}),
			scenario: both(setTemplateOption("hookscript", "local:snippets/pve-hook"), func(s *pvesim.Scenario) {
				for n := range s.Hosts {
					s.Hosts[n].Sockets, s.Hosts[n].Cores, s.Hosts[n].NUMA = 2, 2, 2
					s.Hosts[n].Config = map[string]string{"description": `<!-- karpenter.proxmox.sinextra.dev/topology {"v":1,"host":"pve1","cells":[` +
						`{"id":0,"memoryMiB":32768,"cores":["0","1"]},{"id":1,"memoryMiB":32768,"cores":["2","3"]}]} -->`}
				}
			}),
			unusable: map[string]string{"pve2": `cores cannot be assigned: the topology in the notes of host pve2 is invalid: found the topology of host "pve1"...`},
		},
	})
}

func TestCheckHighAvailability(t *testing.T) {
	// onTwoHosts is a Cluster with groups or rules for both hosts and for the second one.
	onTwoHosts := func(release string, ha v1alpha1.HighAvailability, want string) checkCase {
		return checkCase{
			hosts: 2, release: release, want: want,
			scenario: func(s *pvesim.Scenario) { s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Sys.Console") },
			prepare: func(w *testenv.Env) {
				w.Sim.AddHAGroup("both", "pve1:2", "pve2:1")
				w.Sim.AddHAGroup("second", "pve2")
				w.Sim.AddHARule("both", map[string]string{"type": "node-affinity", "nodes": "pve1:2,pve2:1", "resources": "vm:100"})
				w.Sim.AddHARule("second", map[string]string{"type": "node-affinity", "nodes": "pve2", "resources": "vm:100"})
				w.Sim.AddHARule("away", map[string]string{"type": "resource-affinity", "affinity": "negative", "resources": "vm:100,vm:101"})
			},
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.PlacementStrategy.PoolAffinity = v1alpha1.PoolAffinitySeparateHosts
				c.Spec.HighAvailability = &ha
			},
		}
	}
	onSecondHost := func(release string, ha v1alpha1.HighAvailability, reason string) checkCase {
		c := onTwoHosts(release, ha, "")
		c.unusable = map[string]string{"pve1": reason}
		return c
	}
	runChecks(t, v1alpha1.ConditionHighAvailabilityReady, v1alpha1.ReasonHighAvailabilityUnsupported, map[string]checkCase{
		"8.4":   onTwoHosts("8.4", v1alpha1.HighAvailability{}, ""),
		"9.2":   onTwoHosts("9.2", v1alpha1.HighAvailability{SeparateHosts: true}, ""),
		"group": onTwoHosts("8.4", v1alpha1.HighAvailability{Group: "both"}, ""),
		"rules": onTwoHosts("9.2", v1alpha1.HighAvailability{Rules: []string{"both", "away"}}, ""),
		"group_on_9.2": onTwoHosts("9.2", v1alpha1.HighAvailability{Group: "both"},
			`region-1: spec.highAvailability.group "both" needs Proxmox VE 8, this is 9.2, in which rules replaced HA groups; use spec.highAvailability.rules...`),
		"rules_on_8.4": onTwoHosts("8.4", v1alpha1.HighAvailability{Rules: []string{"both", "away"}},
			"region-1: spec.highAvailability.rules both, away needs Proxmox VE 9.0 or newer, this is 8.4; use spec.highAvailability.group..."),
		"separate_hosts_on_8.4": onTwoHosts("8.4", v1alpha1.HighAvailability{SeparateHosts: true},
			"region-1: spec.highAvailability.separateHosts true needs Proxmox VE 9.0 or newer, this is 8.4; upgrade it, remove the field..."),
		"unknown_group": onTwoHosts("8.4", v1alpha1.HighAvailability{Group: "rack3"},
			`region-1: spec.highAvailability.group: HA group "rack3" does not exist; the cluster has both, second`),
		"unknown_rule": onTwoHosts("9.2", v1alpha1.HighAvailability{Rules: []string{"both", "rack3"}},
			`region-1: spec.highAvailability.rules[1]: HA rule "rack3" does not exist; the cluster has away, both, second`),
		"group_of_one_host": onSecondHost("8.4", v1alpha1.HighAvailability{Group: "second"},
			`spec.highAvailability.group: HA group "second" has the hosts pve2, but not this one`),
		"rule_of_one_host": onSecondHost("9.2", v1alpha1.HighAvailability{Rules: []string{"second"}},
			`spec.highAvailability.rules[0]: HA rule "second" has the hosts pve2, but not this one`),
	})
}
