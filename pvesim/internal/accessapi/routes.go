// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package accessapi serves users, groups, roles, tokens, permissions and logins.
package accessapi

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// Handlers by kind of object.
type (
	loginHandlers struct{ k *kernel.Kernel }
	roleHandlers  struct{ k *kernel.Kernel }
	userHandlers  struct{ k *kernel.Kernel }
	groupHandlers struct{ k *kernel.Kernel }
	tokenHandlers struct{ k *kernel.Kernel }
	aclHandlers   struct{ k *kernel.Kernel }
)

// Routes returns the handlers of the access API by method.
func Routes(k *kernel.Kernel) map[string]api.Handler {
	lh, rh, uh := loginHandlers{k}, roleHandlers{k}, userHandlers{k}
	gh, th, ah := groupHandlers{k}, tokenHandlers{k}, aclHandlers{k}
	return map[string]api.Handler{
		"GET /access/permissions":                       lh.getPermissions,
		"GET /access/roles":                             rh.getRoles,
		"POST /access/roles":                            rh.postRole,
		"GET /access/roles/{roleid}":                    rh.getRole,
		"PUT /access/roles/{roleid}":                    rh.putRole,
		"DELETE /access/roles/{roleid}":                 rh.deleteRole,
		"POST /access/ticket":                           lh.postTicket,
		"GET /access/users":                             uh.getUsers,
		"POST /access/users":                            uh.postUser,
		"GET /access/users/{userid}":                    uh.getUser,
		"PUT /access/users/{userid}":                    uh.putUser,
		"DELETE /access/users/{userid}":                 uh.deleteUser,
		"GET /access/users/{userid}/token":              th.getTokens,
		"GET /access/users/{userid}/token/{tokenid}":    th.getToken,
		"POST /access/users/{userid}/token/{tokenid}":   th.postToken,
		"PUT /access/users/{userid}/token/{tokenid}":    th.putToken,
		"DELETE /access/users/{userid}/token/{tokenid}": th.deleteToken,
		"GET /access/acl":                               ah.getACL,
		"PUT /access/acl":                               ah.putACL,
		"GET /access/domains":                           lh.getDomains,
		"GET /access/groups":                            gh.getGroups,
		"POST /access/groups":                           gh.postGroup,
		"GET /access/groups/{groupid}":                  gh.getGroup,
		"PUT /access/groups/{groupid}":                  gh.putGroup,
		"DELETE /access/groups/{groupid}":               gh.deleteGroup,
		"PUT /access/password":                          lh.putPassword,
		"GET /access":                                   api.Index("subdir", "users", "groups", "roles", "acl", "domains", "ticket", "permissions"),
	}
}
