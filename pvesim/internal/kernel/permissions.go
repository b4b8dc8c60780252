// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// Permissions checks the permissions of callers.
type Permissions struct {
	Access *access.Store
}

// authorize runs the permission check in the schema of the method.
func (pm *Permissions) authorize(r *api.Request) error {
	m := r.Method
	switch {
	case m.User == "all" || m.User == "world":
		return nil
	case r.Who.IsRoot():
		return nil
	case len(m.Check) == 0:
		return api.Denied("user != root@pam")
	}
	var check []any
	if err := json.Unmarshal(m.Check, &check); err != nil {
		return fmt.Errorf("parsing the permissions of %s: %w", m.Name(), err)
	}
	return pm.checkRule(r, check)
}

func (pm *Permissions) checkRule(r *api.Request, check []any) error {
	kind, _ := check[0].(string)
	switch kind {
	case "and":
		for _, sub := range check[1:] {
			if err := pm.checkRule(r, sub.([]any)); err != nil {
				return err
			}
		}
		return nil
	case "or":
		for _, sub := range check[1:] {
			if pm.checkRule(r, sub.([]any)) == nil {
				return nil
			}
		}
		return api.Denied("")
	case "perm":
		return pm.checkPerm(r, check)
	case "perm-modify":
		return pm.CheckPermModify(r, r.Fill(check[1].(string)))
	case "userid-param":
		return pm.checkUserParam(r, check[1].(string))
	case "userid-group":
		return pm.checkUserGroup(r, check)
	default:
		return api.Denied("")
	}
}

func (pm *Permissions) checkPerm(r *api.Request, check []any) error {
	var privs []string
	for _, p := range check[2].([]any) {
		privs = append(privs, p.(string))
	}
	options := map[string]string{}
	for i := 3; i+1 < len(check); i += 2 {
		options[fmt.Sprint(check[i])] = fmt.Sprint(check[i+1])
	}
	if param := options["require_param"]; param != "" && r.Params.Values[param] == "" {
		return api.Denied("")
	}
	path := r.Fill(check[1].(string))
	if options["any"] != "" {
		return pm.RequireAny(r, path, privs...)
	}
	return pm.Require(r, path, privs...)
}

// Require returns an error with the first privilege that the caller does not have on a path.
func (pm *Permissions) Require(r *api.Request, path string, privs ...string) error {
	have := pm.Access.Permissions(r.Who, path)
	for _, p := range privs {
		if _, ok := have[p]; !ok {
			return api.Denied(path + ", " + p)
		}
	}
	return nil
}

// RequireAny returns an error if the caller has none of the privileges on a path.
func (pm *Permissions) RequireAny(r *api.Request, path string, privs ...string) error {
	if pm.Access.HasAny(r.Who, path, privs...) {
		return nil
	}
	return api.Denied(path + ", " + strings.Join(privs, "|"))
}

// CheckPermModify returns an error if the caller cannot change the ACL of a path. This needs Permissions.Modify, or the
// privilege to allocate the object.
func (pm *Permissions) CheckPermModify(r *api.Request, path string) error {
	privs := []string{"Permissions.Modify"}
	switch {
	case strings.HasPrefix(path, "/storage/"):
		privs = append(privs, "Datastore.Allocate")
	case strings.HasPrefix(path, "/vms/"):
		privs = append(privs, "VM.Allocate")
	case strings.HasPrefix(path, "/pool/"):
		privs = append(privs, "Pool.Allocate")
	}
	return pm.RequireAny(r, path, privs...)
}

func (pm *Permissions) checkUserParam(r *api.Request, what string) error {
	userid := r.Params.Values["userid"]
	if what == "self" {
		if r.Who.Token == "" && r.Who.User == userid {
			return nil
		}
		return api.Denied("")
	}
	_, realm, _ := strings.Cut(userid, "@")
	return pm.Require(r, "/access/realm/"+realm, what)
}

func (pm *Permissions) checkUserGroup(r *api.Request, check []any) error {
	var privs []string
	for _, p := range check[1].([]any) {
		privs = append(privs, p.(string))
	}
	return pm.RequireAny(r, "/access/groups", privs...)
}
