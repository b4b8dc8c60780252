// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/unmanagedtemplate"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	karpenter = "kubernetes@pve!karpenter"
	// lack is the start of a message about privileges that are missing on pve1.
	lack = "region-1/pve1: API token " + karpenter + " lacks "
)

// grant returns the command that grants a role to the token.
func grant(path, role string) string {
	return "pveum acl modify " + path + " --roles " + role + " --users kubernetes@pve --tokens '" + karpenter + "'"
}

// lacks is the message about privileges that can be added to the token's role.
func lacks(missing, privileges string) string {
	return lack + missing + "; run: pveum role modify Karpenter --append 1 --privs \"" + privileges + "\" && " + grant("/", "Karpenter")
}

func TestCheckPrivilegesMessage(t *testing.T) {
	runChecks(t, v1alpha1.ConditionPrivilegesSufficient, v1alpha1.ReasonPrivilegesMissing, map[string]checkCase{
		"on_a_path": {
			scenario: func(s *pvesim.Scenario) {
				s.ACLs[0].Path = "/vms"
				s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/storage/local-lvm", Role: "PVEDatastoreAdmin", User: "kubernetes@pve", NoPropagate: true},
					pvesim.ACL{Path: "/nodes", Role: "Karpenter", User: "kubernetes@pve"}, pvesim.ACL{Path: "/sdn", Role: "Karpenter", User: "kubernetes@pve"})
			},
			class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Storage = "local" },
			want: lack + "Datastore.Allocate, Datastore.AllocateTemplate, Datastore.Audit on /storage/local; " +
				"run: pveum role add KarpenterISO --privs \"Datastore.Allocate Datastore.AllocateTemplate Datastore.Audit\" && " + grant("/storage/local", "KarpenterISO"),
		},
		"in_a_role": {scenario: withoutPrivilege("Karpenter VM.Clone", "Karpenter SDN.Use"),
			want: lacks("VM.Clone on /vms/9000; SDN.Use on /sdn/zones/localnetwork/vmbr0", "SDN.Use VM.Clone")},
		"VLAN": {
			scenario: both(setTemplateOption("net0", nic+"bridge=vmbr0,tag=15"), func(s *pvesim.Scenario) {
				s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/sdn/zones/localnetwork/vmbr0/15", Role: "PVEAuditor", User: "kubernetes@pve"})
			}),
			want: lack + "SDN.Use on /sdn/zones/localnetwork/vmbr0/15; " +
				"run: pveum role add KarpenterNet --privs \"SDN.Use\" && " + grant("/sdn/zones/localnetwork/vmbr0/15", "KarpenterNet"),
		},
		"device_of_template": {
			scenario: both(setTemplateOption("hostpci0", "mapping=gpu,pcie=1"), func(s *pvesim.Scenario) {
				s.Mappings = []pvesim.Mapping{{Kind: "pci", ID: "gpu", Map: []string{"id=10de:2204,node=pve1,path=0000:01:00.0"}}}
			}),
			want: lacks("Mapping.Use on /mapping/pci/gpu", "Mapping.Use"),
		},
		"device": {
			class: hardware(v1alpha1.Hardware{PCI: []v1alpha1.PCIDevice{{Mapping: "gpu"}}}),
			want:  lacks("Mapping.Use on /mapping/pci/gpu", "Mapping.Use"),
		},
		"directory": {class: withShares("data"), want: lacks("Mapping.Use on /mapping/dir/data", "Mapping.Use")},
		"hwrng": {
			release: "9.2", class: hardware(v1alpha1.Hardware{RNG: &v1alpha1.RNG{Source: "hwrng"}}),
			want: lacks("Mapping.Use on /mapping/hwrng", "Mapping.Use"),
		},
		"startup": {class: hardware(v1alpha1.Hardware{Startup: &v1alpha1.StartupOrder{Order: new(int32(1))}}), want: lack + "Sys.Modify on /; run: ..."},
		"high_availability": {class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.HighAvailability = &v1alpha1.HighAvailability{} },
			want: lack + "Sys.Console on /; run: ..."},
		"TDX_without_root": {
			release: "9.2", class: tdx, want: "region-1: spec.hardware.confidentialComputing sets intel-tdx, which only root@pam may do; add a root login...",
		},
		"plan9_without_root": {scenario: withMapping("dir", "data", "node=pve1,path=/tank"), class: withPlan9Share,
			want: "region-1: spec.shares[0].type plan9 sets QEMU arguments, which only root@pam may do; " +
				"add a root login for this region to the cloud config (docs/shares.md), or use type virtiofs"},
		"firmware_without_root": {class: withFirmware, prepare: func(w *testenv.Env) {
			setSecret(w, testenv.TemplatesSecret, "user-data", "variant: flatcar\nversion: 1.1.0\n")
		},
			want: "region-1: spec.metadataOptions.type fwcfg sets QEMU arguments, which only root@pam may do; " +
				"add a root login for this region to the cloud config (docs/boot-data.md), or use type cdrom with an image whose Ignition supports the platform proxmoxve"},
	})
}

// The condition lists the same privilege and its command once for all hosts.
func TestCheckPrivilegesMessageOfAllHosts(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, class := checkCase{hosts: 3, scenario: withoutPrivilege("Karpenter VM.Clone")}.newClass(t)
		checkClass(w, class)
		w.Refresh() // the roles are read once a privilege is missing
		checkClass(w, class)
		w.Expect(condition(class, v1alpha1.ConditionPrivilegesSufficient)).To(Equal("False PrivilegesMissing: region-1/pve1, region-1/pve2, " +
			strings.Replace(lacks("VM.Clone on /vms/9000, /vms/9001, /vms/9002", "VM.Clone"), "pve1", "pve3", 1)))
	})
}

// tokenSetup is a setup of the token that docs/permissions.md describes.
type tokenSetup struct {
	scenario func(*pvesim.Scenario)
	class    func(*v1alpha1.ProxmoxNodeClass)
	// privileges ("role privilege") are removed, each in a test; nil for those of all roles.
	privileges []string
	// unneeded are those that VMs of the class do not require.
	unneeded []string
}

var wholeCluster = tokenSetup{
	scenario: func(*pvesim.Scenario) {}, class: func(*v1alpha1.ProxmoxNodeClass) {},
	unneeded: []string{"Karpenter SDN.Audit", "Karpenter Sys.AccessNetwork"},
}

var poolScoped = tokenSetup{
	class:    func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.ResourcePool = "karpenter" },
	unneeded: []string{"KarpenterISO Datastore.AllocateSpace", "KarpenterNet SDN.Audit", "KarpenterVM Pool.Audit", "KarpenterVM VM.Clone"},
	scenario: func(s *pvesim.Scenario) {
		s.Pools = append(s.Pools, pvesim.Pool{ID: "karpenter"})
		s.Roles, s.ACLs = nil, nil
		addRole(s, "KarpenterVM", "/pool/karpenter", "VM.Audit", "VM.Allocate", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Disk",
			"VM.Config.Network", "VM.Config.HWType", "VM.Config.Cloudinit", "VM.Config.Options", "VM.PowerMgmt", "Pool.Audit")
		addRole(s, "KarpenterTemplate", "/vms/9000", "VM.Audit", "VM.Clone")
		addRole(s, "KarpenterDisk", "/storage/local-lvm", "Datastore.AllocateSpace", "Datastore.Audit")
		addRole(s, "KarpenterISO", "/storage/local", "Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit")
		addRole(s, "KarpenterHost", "/nodes", "Sys.Audit")
		addRole(s, "KarpenterNet", "/sdn/zones/localnetwork", "SDN.Use", "SDN.Audit")
	},
}

// addRole adds a role and grants it on a path.
func addRole(s *pvesim.Scenario, role, path string, privileges ...string) {
	s.Roles = append(s.Roles, pvesim.Role{ID: role, Privileges: privileges})
	s.ACLs = append(s.ACLs, pvesim.ACL{Path: path, Role: role, User: "kubernetes@pve"})
}

// hardwareRNG has a template with the Host's random number generator, for which Proxmox checks a
// privilege when it is cloned.
func hardwareRNG(rng string) tokenSetup {
	return tokenSetup{
		class: wholeCluster.class, privileges: []string{"KarpenterMapping Mapping.Use"},
		scenario: both(setTemplateOption("rng0", rng), func(s *pvesim.Scenario) { addRole(s, "KarpenterMapping", "/mapping/hwrng", "Mapping.Use") }),
	}
}

// retainedDisk has a retained disk: Proxmox checks a privilege on its owner when it is attached.
func retainedDisk() tokenSetup {
	return tokenSetup{
		privileges: []string{"KarpenterRetained VM.Config.Disk"},
		scenario: both(poolScoped.scenario, func(s *pvesim.Scenario) {
			addRole(s, "KarpenterRetained", fmt.Sprintf("/vms/%d", proxmox.RetainedVMID), "VM.Config.Disk")
		}),
		class: func(class *v1alpha1.ProxmoxNodeClass) {
			poolScoped.class(class)
			class.Spec.Machines = []v1alpha1.Machine{{Name: "db-1", Zone: "pve1"}}
			class.Spec.Disks = []v1alpha1.Disk{{Name: "data", Size: "1Gi", Storage: "local-lvm", Retain: true}}
		},
	}
}

// cloudInitDrive has a cloud-init drive, which the template has, or which is added.
func cloudInitDrive(template func(*pvesim.Scenario), unneeded ...string) tokenSetup {
	return tokenSetup{
		scenario: template, class: proxmoxDrive(&v1alpha1.CloudInit{User: "ops"}), unneeded: unneeded,
		privileges: []string{"Karpenter VM.Config.Cloudinit", "Karpenter VM.Config.CDROM", "Karpenter VM.Config.Network", "Karpenter Datastore.AllocateSpace"},
	}
}

// TestCheckPrivileges removes each privilege of the documented roles. Without it, either
// the class is not Ready with the privilege in the message, and a VM cannot be launched
// and deleted; or the class is Ready, and a VM can.
func TestCheckPrivileges(t *testing.T) {
	t.Parallel()
	for name, setup := range map[string]tokenSetup{
		"on_the_cluster": wholeCluster, "on_a_resource_pool": poolScoped, "retained_disk": retainedDisk(),
		"RNG": hardwareRNG("source=/dev/hwrng,max_bytes=1024,period=1000"), "RNG_without_key": hardwareRNG("/dev/hwrng"),
		"added_cloud-init_drive":     cloudInitDrive(withoutDrive),
		"inherited_cloud-init_drive": cloudInitDrive(wholeCluster.scenario, "Karpenter VM.Config.Cloudinit", "Karpenter VM.Config.CDROM"),
	} {
		if setup.privileges == nil {
			sample := pvesim.DefaultScenario(1)
			setup.scenario(sample)
			for _, role := range sample.Roles {
				for _, privilege := range role.Privileges {
					setup.privileges = append(setup.privileges, role.ID+" "+privilege)
				}
			}
		}
		for _, release := range []string{"8.4", "9.2"} {
			for _, privilege := range append(setup.privileges, "") {
				testenv.RunSimulated(t, release+"/"+name+"/without_"+strings.ReplaceAll(privilege, " ", "_"), func(t *testing.T) {
					setup.check(t, release, privilege)
				})
			}
		}
	}
}

func (s tokenSetup) check(t *testing.T, release, privilege string) {
	t.Helper()
	w := testenv.New(t, testenv.NoPolling(), testenv.Scenario(s.scenario, withoutPrivilege(privilege), func(s *pvesim.Scenario) { s.Version = release }))
	w.Expect(unmanagedtemplate.NewController(w.Kube, w.Inventory, w.Events).Reconcile(t.Context(), w.Template())).Error().NotTo(HaveOccurred())
	class := checkClass(w, w.NewClass(s.class))
	if class.Spec.ResourcePool != "" {
		w.Refresh() // it is read once a class refers to it
		checkClass(w, class)
	}
	ready := class.StatusConditions().Root()
	if privilege == "" || slices.Contains(s.unneeded, privilege) {
		w.Expect(ready.IsTrue()).To(BeTrue(), ready.Message)
	} else {
		_, name, _ := strings.Cut(privilege, " ")
		w.Expect(ready.IsFalse()).To(BeTrue(), "the class is Ready without %s", privilege)
		w.Expect(ready.Message).To(ContainSubstring(name))
	}
	class.Status.SelectedZones = testenv.Zones(1)
	w.MarkReady(class)
	if err := runVMLifecycle(w, class); ready.IsTrue() {
		w.Expect(err).NotTo(HaveOccurred(), "the class is Ready without %s", privilege)
	} else {
		w.Expect(err).To(HaveOccurred(), "the class is not Ready, but a VM can be launched without %s", privilege)
	}
}

// runVMLifecycle launches a VM, cleans up its boot drive and deletes it.
func runVMLifecycle(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) error {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), 5*time.Minute)
	defer cancel()
	claim := w.Claim("lifecycle", class)
	in, err := w.Instances.Planner.Plan(ctx, claim, class, false)
	if err != nil {
		return err
	}
	w.SetPlanned(claim, class, in)
	if err := w.Instances.Launcher.Launch(ctx, w.Stored(claim), class); err != nil {
		return err
	}
	if err := w.Instances.Deleter.CleanupBootDrive(ctx, w.Stored(claim)); err != nil {
		return err
	}
	for deleted := false; !deleted; w.Clock.Sleep(time.Second) {
		if deleted, err = w.Instances.Deleter.Delete(ctx, w.Stored(claim)); err != nil {
			return err
		}
	}
	return nil
}

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
		"TDX_on_9.2": {release: "9.2", class: tdx, roots: root},
		"TDX_on_8.4": {release: "8.4", class: tdx, roots: root,
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
