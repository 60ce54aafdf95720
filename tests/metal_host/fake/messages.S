// SPDX-License-Identifier: MIT
//
// objc_msgSend: finds the method (fake_find_method in runtime.cpp) and jumps to it with all arguments as they
// came, wherever the ABI put them. A message to nil gets zero.

#if defined(__x86_64__)

    .text
    .hidden fake_nil_method
    .globl fake_nil_method
    .type fake_nil_method, @function
fake_nil_method:
    xor %eax, %eax
    xor %edx, %edx
    xorps %xmm0, %xmm0
    ret

.macro send name, self, selector
    .hidden \name
    .globl \name
    .type \name, @function
\name:
    push %rbp
    mov %rsp, %rbp
    sub $192, %rsp
    mov %rdi, 0(%rsp)
    mov %rsi, 8(%rsp)
    mov %rdx, 16(%rsp)
    mov %rcx, 24(%rsp)
    mov %r8, 32(%rsp)
    mov %r9, 40(%rsp)
    mov %rax, 48(%rsp)
    movups %xmm0, 64(%rsp)
    movups %xmm1, 80(%rsp)
    movups %xmm2, 96(%rsp)
    movups %xmm3, 112(%rsp)
    movups %xmm4, 128(%rsp)
    movups %xmm5, 144(%rsp)
    movups %xmm6, 160(%rsp)
    movups %xmm7, 176(%rsp)
    mov \self(%rsp), %rdi
    mov \selector(%rsp), %rsi
    call fake_find_method
    mov %rax, %r11
    mov 0(%rsp), %rdi
    mov 8(%rsp), %rsi
    mov 16(%rsp), %rdx
    mov 24(%rsp), %rcx
    mov 32(%rsp), %r8
    mov 40(%rsp), %r9
    mov 48(%rsp), %rax
    movups 64(%rsp), %xmm0
    movups 80(%rsp), %xmm1
    movups 96(%rsp), %xmm2
    movups 112(%rsp), %xmm3
    movups 128(%rsp), %xmm4
    movups 144(%rsp), %xmm5
    movups 160(%rsp), %xmm6
    movups 176(%rsp), %xmm7
    leave
    jmp *%r11
.endm

    .hidden fake_find_method
    send objc_msgSend, 0, 8
    send objc_msgSend_fpret, 0, 8
    send objc_msgSend_stret, 8, 16  // the first argument says where the result goes

#elif defined(__aarch64__)

    .text
    .hidden fake_nil_method
    .globl fake_nil_method
    .type fake_nil_method, %function
fake_nil_method:
    mov x0, #0
    mov x1, #0
    fmov d0, xzr
    ret

    .hidden fake_find_method
    .hidden objc_msgSend
    .globl objc_msgSend
    .type objc_msgSend, %function
objc_msgSend:
    stp x29, x30, [sp, #-224]!
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    bl fake_find_method
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    br x16

#else
#error "no trampolines for this machine"
#endif

    .section .note.GNU-stack, "", %progbits
