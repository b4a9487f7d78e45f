; Memory for large arrays, which is used again: a page that the system has not given to the process yet costs as much as
; computing what goes there. NumPy takes results from here and gives them back (these are the functions of one of its
; handlers of memory), and calls take their temporaries. FUTEX stands for the number of a system call, and
; LARGE for the bytes from which on that pays.
;
; A block begins with 64 bytes of its own, of which the first eight say how long it is; 0 stands for a short one, which is
; the C library's and goes back there. Blocks that nobody uses are in a short list. Who finds that busy asks the system instead. When nothing was taken or given for two seconds, all of it
; goes back to the system: @memory_keeper sees to that, on a thread of its own that sleeps while the list is empty.

%block = type { i64, ptr }                 ; bytes, or 0; where it begins
%memory = type { i32, i32, i64, i64, i64, i64, [16 x %block] }
; 0: whether somebody is at the list; 1: blocks in it; 2: bytes in it; 3: most bytes in it; 4: uses; 5: the next to go
@memory = external global %memory, align 64
@two_seconds = private constant [2 x i64] [i64 2, i64 0]

declare i64 @syscall(i64, ...)
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @munmap(ptr, i64)
declare i32 @madvise(ptr, i64, i32)
declare ptr @malloc(i64)
declare void @free(ptr)
declare i64 @malloc_usable_size(ptr)
declare ptr @memcpy(ptr, ptr, i64)
declare ptr @memset(ptr, i32, i64)

define private i1 @lock() nounwind {
  %pair = cmpxchg ptr @memory, i32 0, i32 1 acquire monotonic
  %got = extractvalue { i32, i1 } %pair, 1
  ret i1 %got
}

define private void @unlock() nounwind {
  store atomic i32 0, ptr @memory release, align 4
  ret void
}

define private void @count_use() nounwind {
  %usesp = getelementptr %memory, ptr @memory, i32 0, i32 4
  %u = atomicrmw add ptr %usesp, i64 1 monotonic
  ret void
}

; Counts a block that came to the list, or left it. Only with the list locked.
define private void @account(i32 %blocks, i64 %bytes) nounwind {
  %countp = getelementptr %memory, ptr @memory, i32 0, i32 1
  %bytesp = getelementptr %memory, ptr @memory, i32 0, i32 2
  %c = atomicrmw add ptr %countp, i32 %blocks seq_cst
  %b = load i64, ptr %bytesp
  %b1 = add i64 %b, %bytes
  store i64 %b1, ptr %bytesp
  ret void
}

; At least `size` bytes, aligned to 64; null when there are none.
define ptr @memory_take(i64 %size) nounwind {
entry:
  %with = add i64 %size, 65599
  %need = and i64 %with, -65536
  %wrapped = icmp ult i64 %need, %size
  br i1 %wrapped, label %fail, label %start
start:
  %quarter = lshr i64 %need, 2
  %most = add i64 %need, %quarter
  %got = call i1 @lock()
  br i1 %got, label %look, label %fresh
look:
  %k = phi i64 [ 0, %start ], [ %k1, %next ]
  %p = getelementptr %memory, ptr @memory, i32 0, i32 6, i64 %k
  %bytes = load i64, ptr %p
  %large = icmp uge i64 %bytes, %need
  %close = icmp ule i64 %bytes, %most
  %fits = and i1 %large, %close
  br i1 %fits, label %found, label %next
next:
  %k1 = add i64 %k, 1
  %end = icmp eq i64 %k1, 16
  br i1 %end, label %none, label %look
found:
  %beginp = getelementptr %block, ptr %p, i32 0, i32 1
  %begin = load ptr, ptr %beginp
  store i64 0, ptr %p
  %less = sub i64 0, %bytes
  call void @account(i32 -1, i64 %less)
  call void @count_use()
  call void @unlock()
  %data = getelementptr i8, ptr %begin, i64 64
  ret ptr %data
none:
  call void @unlock()
  br label %fresh
fresh:
  %m = call ptr @mmap(ptr null, i64 %need, i32 3, i32 34, i32 -1, i64 0)
  %bits = ptrtoint ptr %m to i64
  %failed = icmp eq i64 %bits, -1
  br i1 %failed, label %fail, label %new
new:
  ; MADV_HUGEPAGE: a hint, whatever comes of it.
  %h = call i32 @madvise(ptr %m, i64 %need, i32 14)
  store i64 %need, ptr %m
  %fresh.data = getelementptr i8, ptr %m, i64 64
  ret ptr %fresh.data
fail:
  ret ptr null
}

define void @memory_give(ptr %data) nounwind {
entry:
  %null = icmp eq ptr %data, null
  br i1 %null, label %out, label %start
start:
  %begin = getelementptr i8, ptr %data, i64 -64
  %bytes = load i64, ptr %begin
  %short = icmp eq i64 %bytes, 0
  br i1 %short, label %return, label %large
return:
  call void @free(ptr %begin)
  ret void
large:
  %limitp = getelementptr %memory, ptr @memory, i32 0, i32 3
  %limit = load i64, ptr %limitp
  %fits = icmp ule i64 %bytes, %limit
  br i1 %fits, label %enter, label %release
enter:
  %got = call i1 @lock()
  br i1 %got, label %keep, label %release
keep:
  call void @count_use()
  %handp = getelementptr %memory, ptr @memory, i32 0, i32 5
  %bytesp = getelementptr %memory, ptr @memory, i32 0, i32 2
  br label %room
room:
  ; In turn, whatever was in the list for the longest time makes room.
  %hand = load i64, ptr %handp
  %p = getelementptr %memory, ptr @memory, i32 0, i32 6, i64 %hand
  %after = add i64 %hand, 1
  %wrapped = and i64 %after, 15
  store i64 %wrapped, ptr %handp
  %old = load i64, ptr %p
  %empty = icmp eq i64 %old, 0
  br i1 %empty, label %check, label %evict
evict:
  %oldp = getelementptr %block, ptr %p, i32 0, i32 1
  %oldbegin = load ptr, ptr %oldp
  store i64 0, ptr %p
  %minus = sub i64 0, %old
  call void @account(i32 -1, i64 %minus)
  %u = call i32 @munmap(ptr %oldbegin, i64 %old)
  br label %check
check:
  %kept = load i64, ptr %bytesp
  %total = add i64 %kept, %bytes
  %under = icmp ule i64 %total, %limit
  br i1 %under, label %put, label %room
put:
  %beginp = getelementptr %block, ptr %p, i32 0, i32 1
  store ptr %begin, ptr %beginp
  store i64 %bytes, ptr %p
  call void @account(i32 1, i64 %bytes)
  %countp = getelementptr %memory, ptr @memory, i32 0, i32 1
  %count = load atomic i32, ptr %countp seq_cst, align 4
  call void @unlock()
  %first = icmp eq i32 %count, 1
  br i1 %first, label %rouse, label %out
rouse:
  %r = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %countp, i32 129, i32 1, ptr null, ptr null, i32 0)
  br label %out
release:
  %v = call i32 @munmap(ptr %begin, i64 %bytes)
  br label %out
out:
  ret void
}

; Gives all blocks in the list back to the system; returns their bytes.
define i64 @memory_trim() nounwind {
entry:
  %bytesp = getelementptr %memory, ptr @memory, i32 0, i32 2
  %got = call i1 @lock()
  br i1 %got, label %look, label %busy
look:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %sum = phi i64 [ 0, %entry ], [ %sum1, %next ]
  %p = getelementptr %memory, ptr @memory, i32 0, i32 6, i64 %k
  %bytes = load i64, ptr %p
  %empty = icmp eq i64 %bytes, 0
  br i1 %empty, label %next, label %drop
drop:
  %beginp = getelementptr %block, ptr %p, i32 0, i32 1
  %begin = load ptr, ptr %beginp
  store i64 0, ptr %p
  %less = sub i64 0, %bytes
  call void @account(i32 -1, i64 %less)
  %u = call i32 @munmap(ptr %begin, i64 %bytes)
  br label %next
next:
  %sum1 = add i64 %sum, %bytes
  %k1 = add i64 %k, 1
  %end = icmp eq i64 %k1, 16
  br i1 %end, label %done, label %look
done:
  call void @unlock()
  ret i64 %sum1
busy:
  ret i64 0
}

define ptr @memory_keeper(ptr %argument) nounwind {
entry:
  %countp = getelementptr %memory, ptr @memory, i32 0, i32 1
  %usesp = getelementptr %memory, ptr @memory, i32 0, i32 4
  br label %sleep
sleep:
  %r = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %countp, i32 128, i32 0, ptr null, ptr null, i32 0)
  %count = load atomic i32, ptr %countp seq_cst, align 4
  %empty = icmp eq i32 %count, 0
  br i1 %empty, label %sleep, label %wait
wait:
  %before = load atomic i64, ptr %usesp monotonic, align 8
  ; A word that nobody changes or wakes: the wait ends after its time.
  %handp = getelementptr %memory, ptr @memory, i32 0, i32 5
  %word = getelementptr i8, ptr %handp, i64 4
  %t = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %word, i32 128, i32 0, ptr @two_seconds, ptr null, i32 0)
  %after = load atomic i64, ptr %usesp monotonic, align 8
  %idle = icmp eq i64 %before, %after
  br i1 %idle, label %trim, label %sleep
trim:
  %bytes = call i64 @memory_trim()
  br label %sleep
}

; -- as NumPy calls them

define ptr @memory_malloc(ptr %context, i64 %size) nounwind {
entry:
  %large = icmp uge i64 %size, LARGE
  br i1 %large, label %take, label %short
take:
  %data = call ptr @memory_take(i64 %size)
  ret ptr %data
short:
  %with = add i64 %size, 64
  %begin = call ptr @malloc(i64 %with)
  %null = icmp eq ptr %begin, null
  br i1 %null, label %fail, label %mark
mark:
  store i64 0, ptr %begin
  %own = getelementptr i8, ptr %begin, i64 64
  ret ptr %own
fail:
  ret ptr null
}

define ptr @memory_calloc(ptr %context, i64 %count, i64 %each) nounwind {
entry:
  %pair = call { i64, i1 } @llvm.umul.with.overflow.i64(i64 %count, i64 %each)
  %size = extractvalue { i64, i1 } %pair, 0
  %over = extractvalue { i64, i1 } %pair, 1
  br i1 %over, label %fail, label %take
take:
  %data = call ptr @memory_malloc(ptr null, i64 %size)
  %null = icmp eq ptr %data, null
  br i1 %null, label %fail, label %clear
clear:
  %s = call ptr @memset(ptr %data, i32 0, i64 %size)
  ret ptr %data
fail:
  ret ptr null
}
declare { i64, i1 } @llvm.umul.with.overflow.i64(i64, i64)

define ptr @memory_realloc(ptr %context, ptr %old, i64 %size) nounwind {
entry:
  %data = call ptr @memory_malloc(ptr null, i64 %size)
  %null = icmp eq ptr %data, null
  %first = icmp eq ptr %old, null
  %none = or i1 %null, %first
  br i1 %none, label %out, label %measure
measure:
  %begin = getelementptr i8, ptr %old, i64 -64
  %bytes = load i64, ptr %begin
  %short = icmp eq i64 %bytes, 0
  br i1 %short, label %ask, label %move
ask:
  %usable = call i64 @malloc_usable_size(ptr %begin)
  br label %move
move:
  %whole = phi i64 [ %bytes, %measure ], [ %usable, %ask ]
  %had = sub i64 %whole, 64
  %shorter = icmp ult i64 %had, %size
  %copied = select i1 %shorter, i64 %had, i64 %size
  %c = call ptr @memcpy(ptr %data, ptr %old, i64 %copied)
  call void @memory_give(ptr %old)
  br label %out
out:
  ret ptr %data
}

define void @memory_free(ptr %context, ptr %data, i64 %size) nounwind {
  call void @memory_give(ptr %data)
  ret void
}
