// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/privileges"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// permissionsPage returns the part of docs/permissions.md below a heading.
func permissionsPage(t *testing.T, heading string) string {
	t.Helper()
	_, section, found := strings.Cut(read(t, "docs/permissions.md"), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/permissions.md has no heading %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}

var (
	roleCommand = regexp.MustCompile(`pveum role add (\w+) -privs "([^"]+)"`)
	aclCommand  = regexp.MustCompile(`pveum acl modify (\S+) --users \S+ --roles (\w+)`)
)

// documentedAccount returns the account that the commands of a section create.
func documentedAccount(section string) privileges.Account {
	account := privileges.Account{Held: proxmox.Permissions{}, Roles: map[string][]string{}}
	for _, match := range roleCommand.FindAllStringSubmatch(section, -1) {
		account.Roles[match[1]] = strings.Fields(match[2])
	}
	for _, match := range aclCommand.FindAllStringSubmatch(section, -1) {
		account.Held[match[1]] = map[string]bool{}
		for _, privilege := range account.Roles[match[2]] {
			account.Held[match[1]][privilege] = true
		}
	}
	return account
}

// requiredPrivileges returns the privileges of a NodeClass and a ProxmoxTemplate. With all
// features, they use every feature that requires a privilege.
func requiredPrivileges(held proxmox.Permissions, resourcePool string, allFeatures bool) []privileges.Required {
	snapshot := &observed.Snapshot{
		Version: proxmox.Version{Release: "9.2"},
		Facts: &observed.Facts{
			Permissions: held, Bridges: map[string]map[string]proxmox.Bridge{"pve1": {"vmbr0": {}}},
			VNets: map[string]proxmox.VNet{"blue": {Zone: "lab"}},
		},
	}
	config := proxmox.VMConfig{Options: map[string]string{
		"scsi0": "local-lvm:base-9000-disk-0", "ide2": "local-lvm:vm-9000-cloudinit,media=cdrom", "net0": "virtio,bridge=vmbr0",
	}}
	class := &v1alpha1.ProxmoxNodeClass{}
	class.Spec.ResourcePool, class.Spec.MetadataOptions.Type = resourcePool, v1alpha1.MetadataTypeCDROM
	class.Spec.Tags, class.Spec.SecurityGroups = []string{"a"}, []v1alpha1.SecurityGroup{{Name: "a"}}
	if allFeatures {
		class.Spec.Shares = []v1alpha1.Share{{Mapping: "data"}}
		class.Spec.Hardware = &v1alpha1.Hardware{Startup: &v1alpha1.StartupOrder{Order: new(int32(1))}}
		class.Spec.HighAvailability = &v1alpha1.HighAvailability{}
		maps.Copy(config.Options, map[string]string{
			"hostpci0": "mapping=gpu", "usb0": "mapping=stick", "rng0": "source=/dev/hwrng", "cpu": "custom-fast", "net1": "virtio,bridge=blue,tag=5",
		})
	}
	required := privileges.ForVM(privileges.VM{
		Class: class, Snapshot: snapshot, Host: "pve1", TemplateID: 9000, Template: &config, BootDriveStorage: "local",
	})
	return append(required, privileges.ForTemplate(privileges.Template{
		Snapshot: snapshot, Host: "pve1", ImageStorage: "local", Storage: "local-lvm", ResourcePool: resourcePool, Config: config,
		Prepared: true, BootDriveStorage: "local",
	})...)
}

// kindOf returns the kind of object of an ACL path.
func kindOf(path string) string {
	kind, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return kind
}

// TestPermissionsTable compares the table of privileges with the code that checks them, in
// both directions.
func TestPermissionsTable(t *testing.T) {
	t.Parallel()
	documented, optional := documentedPrivileges(t)
	required := map[string]bool{}
	for _, pool := range []string{"", "karpenter"} {
		for _, r := range requiredPrivileges(proxmox.Permissions{}, pool, true) {
			required[kindOf(r.Path)+" "+r.Privilege] = true
		}
	}
	for name := range required {
		expect(t, documented[name], "the table lacks the required privilege %s", name)
	}
	for name := range documented {
		if !required[name] && !optional[name] {
			t.Errorf("the table has %s, which nothing requires", name)
		}
	}
}

// documentedPrivileges returns the privileges of the table as "kind privilege", and those
// of them that are optional.
func documentedPrivileges(t *testing.T) (documented, optional map[string]bool) {
	t.Helper()
	documented, optional = map[string]bool{}, map[string]bool{}
	_, table, _ := strings.Cut(permissionsPage(t, "What each privilege is for"), "\n| privilege | path | needed for |\n|---|---|---|\n")
	var paths []string
	for line := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			break
		}
		if found := quotedIn(cells[2]); strings.TrimSpace(cells[2]) != "same" {
			paths = found
		}
		for _, privilege := range quotedIn(cells[1]) {
			for _, path := range paths {
				if strings.HasPrefix(path, "/") {
					name := kindOf(path) + " " + privilege
					documented[name] = true
					optional[name] = strings.HasPrefix(strings.TrimSpace(cells[3]), "optional")
				}
			}
		}
	}
	if len(documented) < 20 {
		t.Fatalf("found %d privileges in the table", len(documented))
	}
	return documented, optional
}

// TestPermissionsRoles checks that the documented roles contain what is required and nothing
// else, and that they are those of the simulator, with which the other tests run.
func TestPermissionsRoles(t *testing.T) {
	t.Parallel()
	_, optional := documentedPrivileges(t)
	whole := documentedAccount(permissionsPage(t, "On the whole cluster"))
	required := requiredPrivileges(whole.Held, "", false)
	missing := whole.Missing(required)
	expect(t, len(missing) == 0, "the role for the whole cluster lacks %v", missing)
	for _, privilege := range whole.Roles["Karpenter"] {
		isRequired := slices.ContainsFunc(required, func(r privileges.Required) bool { return r.Privilege == privilege })
		kind := strings.ToLower(strings.SplitN(privilege, ".", 2)[0])
		if !isRequired && !optional[kind+" "+privilege] {
			t.Errorf("the role for the whole cluster has %s, which nothing requires", privilege)
		}
	}
	pool := documentedAccount(permissionsPage(t, "Restricted to a resource pool"))
	for _, missing := range pool.Missing(requiredPrivileges(pool.Held, "karpenter", false)) {
		// The table of additional privileges has it.
		expect(t, missing.Privilege == "Sys.AccessNetwork", "the roles for a resource pool lack %s on %s", missing.Privilege, missing.Path)
	}
	restricted := pvesim.DefaultScenario(1)
	pvesim.PoolScoped(restricted)
	compareRoles(t, pvesim.DefaultScenario(1).Roles, whole.Roles)
	delete(pool.Roles, "KarpenterAudit") // an alternative
	compareRoles(t, restricted.Roles, pool.Roles)
}

func compareRoles(t *testing.T, roles []pvesim.Role, documented map[string][]string) {
	t.Helper()
	expect(t, len(roles) == len(documented), "found %d roles in the simulator, %d in docs/permissions.md", len(roles), len(documented))
	for _, role := range roles {
		if !slices.Equal(slices.Sorted(slices.Values(role.Privileges)), slices.Sorted(slices.Values(documented[role.ID]))) {
			t.Errorf("role %s: the simulator has %v, docs/permissions.md %v", role.ID, role.Privileges, documented[role.ID])
		}
	}
}
